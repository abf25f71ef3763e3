"""Settings: fields become flags, values come in layers from presets, files and command lines."""
