"""The text library: it knows words and files, never the model. It imports nothing from txl."""
