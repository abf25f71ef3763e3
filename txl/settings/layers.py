"""Settings in layers: default < preset < file < typed. Each layer has typed values by name; they are
merged once.

Presets are files of settings in txl/presets, read as --config reads one.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from txl.errors import require
from txl.settings.reader import read_tables

Asked = dict[str, Any]
"""Settings that somebody has given, as values by name; what is not there is at its default, or as a
checkpoint says.
"""
Entry = Literal["train", "eval", "generate"]
"""The programs for which a preset or a file has settings."""
PRESETS = Path(__file__).parents[1] / "presets"


class Layer(NamedTuple):
    """Asked values of settings by name."""

    values: Asked
    is_preset: bool = False


_REPLACES: dict[str, tuple[str, ...]] = {
    "local_batch_size": ("batch_size",),
    "batch_size": ("local_batch_size",),
    "no_adaptive": ("adaptive", "cutoffs", "div_val"),
    "cutoffs": ("adaptive",),
}
"""A setting, and the settings of lower layers that it makes meaningless."""
_REPLACES_OF_PRESET = {
    "minutes": (
        "max_step",
        "max_step_scheduler",
        "eval_interval",
        "save_interval",
        "warmup_convention",
    ),
}
"""The same of a preset alone: the lengths of a training in a file stay beside --minutes."""


def merge(layers: Sequence[Layer]) -> Asked:
    """The merged values of layers, highest first: a higher layer overrides a lower one."""
    merged: Asked = {}
    for layer in layers:
        gone = _replaced(merged, layer)
        for name, value in layer.values.items():
            if name not in gone:
                merged.setdefault(name, value)
    return merged


def _replaced(above: Asked, layer: Layer) -> set[str]:
    """The settings of a layer that give way to what is set above it."""
    gone: set[str] = set()
    for name, value in above.items():
        key = f"no_{name}" if value is False else name
        gone.update(_REPLACES.get(key, ()))
        if layer.is_preset:
            gone.update(_REPLACES_OF_PRESET.get(key, ()))
    if layer.is_preset and above.get("dataset") not in (None, layer.values.get("dataset")):
        gone.add("data_convention")
    return gone


def presets_of(entry: Entry) -> list[str]:
    """Names of the presets that have settings for a program."""
    names = sorted(path.stem for path in PRESETS.glob("*.toml"))
    return [name for name in names if entry in read_preset(name)]


def has_preset(name: str, entry: Entry) -> bool:
    """True if there is a preset of this name for a program."""
    return _is_there(name) and entry in read_preset(name)


def read_preset(name: str) -> dict[str, Any]:
    """The tables of a preset, by program, and what it is `about`. Raises `UsageError` if there is
    none of this name.
    """
    require(_is_there(name), f"--preset {name}: no such preset")
    return read_tables(_path_of(name))


def _is_there(name: str) -> bool:
    path = _path_of(name)
    return path.parent == PRESETS and path.is_file()


def _path_of(name: str) -> Path:
    return PRESETS / f"{name}.toml"
