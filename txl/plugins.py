"""Parts of a model or a training in files of one's own: `--plugin my.py`, or `txl.plugin("my.py")`.

A file may define memories, position encodings, attention rules and gates of a model, optimizers and
learning rate schedules of a training, and rules of dynamic evaluation. Each is a class with a
`name`, which is then a choice of --memory, --position, --attention, --gate, --optim, --scheduler or
--dynamic. It may also define data sets, each a `DataSet` with a name, for --dataset, and kinds of
checkpoints of other programs, each a `txl.convert.source.Source`, which all programs then read.
Settings of its own are the fields of a dataclass `Settings` inside the class, made with
`txl.config.option`, as in the parts of the package; they are flags of the program, are saved with
the model or the training, and its constructor finds them in `config.own`.
"""

import difflib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from txl.config import Context, ModelConfig, UsageError, require
from txl.files import require_readable
from txl.registry import (
    ALL_PARTS,
    ATTENTION_RULES,
    DATA_SETS,
    SOURCES,
    Registry,
    settings_of,
)

PLUGIN_HELP = (
    "a Python file that defines parts of your own, see docs/architecture.md; may be given several"
    " times"
)
_OF_ALL_MODELS = {field.name for config in (ModelConfig, Context) for field in fields(config)}
_loaded: dict[Path, list[Any]] = {}


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
    _require_choices(parts, file)
    for part in parts:
        _registry_of(part)[part.name] = part
    _loaded[path] = parts


def _require_choices(parts: Sequence[Any], file: str | Path) -> None:
    """Raise `UsageError` if one of the parts of a file cannot become a choice: then none does."""
    own = set()
    for part in parts:
        registry = _registry_of(part)
        require(
            part.name not in registry and (registry.flag, part.name) not in own,
            f"--plugin {file}: --{registry.flag} {part.name}: the name is taken",
        )
        own.add((registry.flag, part.name))
        title = getattr(part, "__name__", part.name)
        settings = settings_of(part)
        require(is_dataclass(settings), f"{title}.Settings: make it a dataclass")
        for field in fields(settings):
            require(field.name not in _OF_ALL_MODELS, taken_setting(title, field.name))
            require(
                "bounds" in field.metadata,
                f"{title}.Settings.{field.name}: a flag needs a help; make it with"
                " txl.config.option(default, help)",
            )
        _require_no_slip(part, registry.base)


def taken_setting(title: str, name: str) -> str:
    """What is said of a setting that has the name of a flag of all models, or of a program."""
    return f"{title}.Settings.{name}: --{name} is there already; give the setting another name"


def _require_no_slip(part: Any, base: type | None) -> None:
    """Raise `UsageError` if a class has a method whose name is nearly one of its base: it would
    never be called.
    """
    if base is None or not isinstance(part, type):
        return
    known = [name for name in dir(base) if not name.startswith("_")]
    for name, value in vars(part).items():
        is_method = callable(value) and not isinstance(value, type)
        if name.startswith("_") or name in known or not is_method:
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
        require(
            not near,
            f"{part.__name__}.{name}: nobody calls it; did you mean {''.join(near)}? (else give it"
            " another name, or begin it with _)",
        )


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


def is_from_file(part: Any) -> bool:
    """True if a file has defined this part."""
    return part in _parts()


def _parts() -> Iterator[Any]:
    for parts in _loaded.values():
        yield from parts


def _is_part(part: Any, module: str) -> bool:
    """True for a class with a name that the file defines, and for a data set with a name."""
    if isinstance(part, DATA_SETS.base):
        return part.name != ""
    return (
        isinstance(part, type)
        and part.__module__ == module
        and isinstance(vars(part).get("name"), str)
    )


def _registry_of(part: Any) -> Registry:
    if isinstance(part, DATA_SETS.base):
        return DATA_SETS
    if all(hasattr(part, member) for member in ("of_model", "shared_qk")):
        return ATTENTION_RULES
    bases = []
    for registry in (*ALL_PARTS, SOURCES):
        if registry.base is None:
            continue
        if issubclass(part, registry.base):
            return registry
        bases.append(registry.base.__name__)
    raise UsageError(
        f"{part.__name__}: no part of a model, a training or an evaluation; derive it from"
        f" {', '.join(bases)}, or give it the members of AttentionRule"
    )
