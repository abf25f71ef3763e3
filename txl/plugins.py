"""Parts of a model in files of one's own: `--plugin my.py`, or `txl.plugin("my.py")`.

A file may define memories, position encodings, attention rules and gates. Each is a class with a
`name`, which is then a choice of --memory, --position, --attention or --gate. Settings of its own
are the fields of a dataclass `Settings` inside the class, made with `txl.config.option`; they are
flags of train.py, are saved with the model, and its constructor finds them in `config.own`.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from txl.attention_rules import AttentionRule
from txl.config import ModelConfig, UsageError, check_field, require
from txl.files import require_readable
from txl.model.rule import MemoryRule
from txl.positions import PositionEncoding
from txl.registry import ATTENTION_RULES, GATES, MEMORIES, POSITIONS, Registry
from txl.stacks.gates import Gate

PLUGIN_HELP = (
    "a Python file that defines parts of your own, see docs/architecture.md; may be given several"
    " times"
)
_loaded: dict[Path, list[type]] = {}


@dataclass
class _NoSettings:
    """Of a part without settings."""


def plugin(file: str | Path) -> None:
    """Run a Python file, which is trusted as any program is, and make the parts that it defines
    choices.

    Raises:
        UsageError: if it cannot be read or run, defines no part, or one has a name that is taken.
    """
    path = Path(file).resolve()
    if path in _loaded:
        return
    require_readable(path)
    module_name = f"txl_plugin_{path.stem}"
    spec = spec_from_file_location(module_name, path)
    require(
        spec is not None and spec.loader is not None,
        f"--plugin {file}: no Python file; its name ends in .py",
    )
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        line = error.__traceback__
        while line is not None and line.tb_frame.f_code.co_filename != str(path):
            line = line.tb_next
        if line is None:
            place = ""
        else:
            place = f" in line {line.tb_lineno}"
        raise UsageError(f"--plugin {file}: {type(error).__name__}{place}: {error}") from None
    parts = []
    for part in vars(module).values():
        if _is_part(part, module_name):
            parts.append(part)
    require(
        bool(parts),
        f'--plugin {file}: defines no part; give a class a name, as in name = "my_memory"',
    )
    for part in parts:
        registry = _registry_of(part)
        require(
            part.name not in registry,
            f"--plugin {file}: --{registry.flag} {part.name}: the name is taken",
        )
        part.settings = (
            *getattr(part, "settings", ()),
            *(f.name for f in fields(_settings_of(part))),
        )
        registry[part.name] = part
    _loaded[path] = parts


def without_plugins(argv: Sequence[str]) -> list[str]:
    """A command line whose --plugin flags have been followed, and taken out."""
    left = []
    words = iter(argv)
    for word in words:
        name, is_given, file = word.partition("=")
        if name != "--plugin":
            left.append(word)
            continue
        if not is_given:
            file = next(words, "")
        require(file != "", "--plugin: name a Python file")
        plugin(file)
    return left


def settings_of_plugins() -> list[type]:
    """The dataclasses of settings of all parts that files have defined."""
    settings = []
    for parts in _loaded.values():
        for part in parts:
            settings.append(_settings_of(part))
    return settings


def own_settings(typed: dict[str, Any], chosen: Sequence[str]) -> dict[str, Any]:
    """`ModelConfig.own` of a model: the settings of those of its parts that files have defined,
    typed or by default. Raises `UsageError` for a value out of its bounds.

    Args:
        chosen: the names of the model's parts.
    """
    own: dict[str, Any] = {}
    for part in _parts():
        if part.name in chosen:
            for f in fields(_settings_of(part)):
                own[f.name] = typed.get(f.name, _default(f))
                check_field(f, own[f.name])
    return own


def require_same_own(typed: dict[str, Any], shape: ModelConfig) -> None:
    """Raise `UsageError` if a setting of a part of one's own is typed that a model has with another
    value.
    """
    for cls in settings_of_plugins():
        for f in fields(cls):
            if f.name in typed and typed[f.name] != shape.own.get(f.name):
                had = f"the model has {shape.own.get(f.name)}"
                raise UsageError(f"--{f.name} {typed[f.name]}: {had}; leave the flag out")


def _parts() -> Iterator[Any]:
    for parts in _loaded.values():
        yield from parts


def _is_part(part: Any, module: str) -> bool:
    return (
        isinstance(part, type)
        and part.__module__ == module
        and isinstance(vars(part).get("name"), str)
    )


def _registry_of(part: Any) -> Registry:
    kinds = {MemoryRule: MEMORIES, PositionEncoding: POSITIONS, Gate: GATES}
    for kind, registry in kinds.items():
        if issubclass(part, kind):
            return registry
    if all(hasattr(part, member) for member in ("of_model", "shared_qk")):
        return ATTENTION_RULES
    raise UsageError(
        f"{part.__name__}: no part of a model; derive it from MemoryRule, PositionEncoding or Gate,"
        f" or give it the members of {AttentionRule.__name__}"
    )


def _settings_of(part: Any) -> type:
    settings = getattr(part, "Settings", _NoSettings)
    require(is_dataclass(settings), f"{part.__name__}.Settings: make it a dataclass")
    return settings


def _default(f: Any) -> Any:
    if f.default is not MISSING:
        return f.default
    return f.default_factory()
