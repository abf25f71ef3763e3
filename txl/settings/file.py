"""The settings in a file of --config for a program: TOML, JSON such as the config.json of a run, and
YAML, also of NVIDIA's shape.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from txl.config import Context, ModelConfig, hints_of
from txl.errors import require
from txl.registry import settings_before
from txl.runtime.records import require_fields
from txl.settings.layers import Entry

_PROGRAMS = ("train", "eval", "generate")
_PARTS_OF_A_RUN = ("data", "model", "context", "train")
"""Of the config.json of a checkpoint; what else it holds is no setting."""
_OF_ONE_RUN = ("work_dir", "resume", "overwrite", "max_hours")
_FOLLOWS = {
    "max_step_scheduler": "max_step",
    "eval_tgt_len": "tgt_len",
    "compressed_len": "mem_len",
    "d_embed": "d_model",
}
"""Settings of a training that are, where they are not given, those of others."""


def is_of_run(content: Mapping[str, Any]) -> bool:
    """True if a file is the record of a run, which has all settings and not those that were given."""
    return all(isinstance(content.get(part), dict) for part in _PARTS_OF_A_RUN)


def settings_in(
    content: dict[str, Any], path: Path, entry: Entry, name: str | None
) -> dict[str, Any]:
    """The settings for a program in the tables of a file, by name. Raises `UsageError`.

    Args:
        entry: the program; tables of this name hold settings for it alone.
        name: of a configuration in the file, where it holds several; None: `default`.
    """
    if is_of_run(content):
        require(name is None, f"{path}: is of a run, and holds no configuration {name}")
        return _of_run(path, content, entry)
    if name is not None or _is_table(content.get("default"), with_key=entry):
        name = name or "default"
        names = ", ".join(key for key in content if _is_table(content[key], with_key=entry))
        content = content.get(name, {})
        require(
            _is_table(content, with_key=entry),
            f"{path}: holds no configuration {name} for {entry}.py; there are {names or 'none'}",
        )
    settings = {key: value for key, value in content.items() if key not in _PROGRAMS}
    own = content.get(entry, {})
    require(isinstance(own, dict), f"{path}: {entry}: must be a table of settings")
    return settings | own


def _is_table(content: Any, *, with_key: str) -> bool:
    return isinstance(content, dict) and with_key in content


def _of_run(path: Path, record: Mapping[str, Any], entry: Entry) -> dict[str, Any]:
    """What the run was started with, as far as another one can be; not where it was, and not what
    follows from other settings, which typed flags may change.
    """
    settings: dict[str, Any] = {}
    parts = _PARTS_OF_A_RUN
    if entry == "generate":  # it draws and spells in a way of its own
        parts = ("model", "context")
    for part in parts:
        settings |= record[part]
    own = settings.pop("own", {})
    require(isinstance(own, dict), f"{path}: own: must be a table of settings")
    settings |= own
    settings = {**settings_before(str(settings.get("memory"))), **settings}
    gone = {*_OF_ONE_RUN}
    if entry == "train":
        gone |= _found_from_others(record, settings)
    else:
        gone.add("vocabulary")  # of what the training began with; the run has its own
    return {key: value for key, value in settings.items() if key not in gone}


def _found_from_others(record: Mapping[str, Any], settings: Mapping[str, Any]) -> set[str]:
    """The settings of a training that were found from others, as train.py finds them."""
    found = {name for name, of in _FOLLOWS.items() if settings.get(name) == settings.get(of)}
    if settings.get("local_batch_size") is not None:
        found.add("batch_size")
    from txl.memory import parts_by_default, positions_by_default  # PyTorch

    try:
        model = ModelConfig(
            **require_fields(record["model"], hints_of(ModelConfig, record["model"]))
        )
        context = Context(**require_fields(record["context"], hints_of(Context, record["context"])))
        n_position = positions_by_default(model, context)
        n_part = parts_by_default(model.memory, context)
    except (TypeError, ValueError):  # edited, or of a plug-in: what is wrong is said later
        return found
    if settings.get("n_position") == n_position:
        found.add("n_position")
    if settings.get("memory_parts") == n_part:
        found.add("memory_parts")
    return found
