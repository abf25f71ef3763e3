"""Settings in a file, for --config: TOML, JSON such as the config.json of a run, and YAML, also of
NVIDIA's shape. Each becomes words of a command line, so that a setting in a file is what the flag is.
"""

import argparse
import difflib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from txl.config import Context, ModelConfig, UsageError, hints_of, require
from txl.memory import parts_by_default, positions_by_default
from txl.registry import settings_before
from txl.runtime.records import require_fields
from txl.settings.layers import Entry
from txl.settings.reader import read_tables

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
_BY_FLAG_ONLY = ("config", "config_file", "help", "plugin")
NAMES_ELSEWHERE = {
    # nanoGPT
    "block_size": "tgt_len",
    "n_embd": "d_model",
    "learning_rate": "lr",
    "min_lr": "eta_min",
    "max_iters": "max_step",
    "lr_decay_iters": "max_step_scheduler",
    "warmup_iters": "warmup_step",
    "eval_iters": "max_eval_steps",
    "grad_clip": "clip",
    "out_dir": "work_dir",
    "start": "prompt",
    # transformers
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "d_inner",
    "max_new_tokens": "length",
    "max_steps": "max_step",
    "warmup_steps": "warmup_step",
    "per_device_train_batch_size": "local_batch_size",
    "output_dir": "work_dir",
}
"""Names of settings in other tools."""


def words_of_file(
    path: Path,
    entry: Entry,
    flags: Mapping[str, argparse.Action],
    idle: Mapping[str, Any],
    name: str | None,
) -> list[str]:
    """The settings of a file as words of a command line, each with its flag and at most one value,
    so that no value is read as a flag; a list is several words.

    Args:
        entry: the program; tables of this name hold settings for it alone.
        flags: that the program has, as `--lr`.
        idle: values of settings that ask for nothing; a run notes those of parts that it does not
            have.
        name: of a configuration in the file, where it holds several; None: `default`.
    Raises:
        UsageError: if it is none of these files, or a key of it is no setting; `OSError` if it
            cannot be read.
    """
    words: list[str] = []
    for key, value in _settings_in(path, entry, flags, idle, name).items():
        _require_setting(path, key, flags, entry)
        if value is None:
            continue
        if value is True:
            words.append(f"--{key}")
        elif value is False:
            takes_value = flags[f"--{key}"].nargs in (None, "+")
            require(
                not takes_value, f"{path}: {key}: takes a value, and false is none; leave it out"
            )
            words += [f"--no_{key}"] if f"--no_{key}" in flags else []
        elif isinstance(value, list):
            takes_several = flags[f"--{key}"].nargs in ("+", "*")
            require(takes_several, f"{path}: {key}: takes one value, and no list")
            require(bool(value), f"{path}: {key}: expected at least one value; leave it out")
            words += [f"--{key}={_value(path, key, one)}" for one in value]
        else:
            words.append(f"--{key}={_value(path, key, value)}")
    return words


def _value(path: Path, key: str, value: Any) -> Any:
    """The value, if it is text or a number. Raises `UsageError`."""
    is_value = isinstance(value, str | int | float) and not isinstance(value, bool)
    require(is_value, f"{path}: {key}: {str(value)[:40]} is no text and no number; give one")
    return value


def _settings_in(
    path: Path,
    entry: Entry,
    flags: Mapping[str, argparse.Action],
    idle: Mapping[str, Any],
    name: str | None,
) -> dict[str, Any]:
    content = read_tables(path)
    if all(isinstance(content.get(part), dict) for part in _PARTS_OF_A_RUN):
        require(name is None, f"{path}: is of a run, and holds no configuration {name}")
        return _of_run(path, content, entry, flags, idle)
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


def _of_run(
    path: Path,
    record: Mapping[str, Any],
    entry: Entry,
    flags: Mapping[str, argparse.Action],
    idle: Mapping[str, Any],
) -> dict[str, Any]:
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
    if entry == "train":
        follows = _FOLLOWS
        for name in _resolved(record, settings):
            del settings[name]
    else:
        follows = {}
        settings.pop("vocabulary", None)  # of what the training began with; the run has its own
    kept = {}
    for key, value in settings.items():
        is_idle = key in idle and value == idle[key]
        is_given = key not in follows or value != settings.get(follows[key])
        asks_nothing = value in ("", []) or is_idle or not is_given
        is_flag = f"--{key}" in flags and flags[f"--{key}"].help != argparse.SUPPRESS
        if is_flag and key not in _OF_ONE_RUN and not asks_nothing:
            kept[key] = value
    return kept


def _resolved(record: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """The settings of a training that were found from others, as train.py finds them."""
    found = []
    if settings.get("local_batch_size") is not None and "batch_size" in settings:
        found.append("batch_size")
    try:
        model = ModelConfig(**require_fields(record["model"], hints_of(ModelConfig)))
        context = Context(**require_fields(record["context"], hints_of(Context)))
        n_position = positions_by_default(model, context)
        n_part = parts_by_default(model.memory, context)
    except (TypeError, ValueError):  # edited, or of a plug-in: what is wrong is said later
        return found
    if settings.get("n_position") == n_position:
        found.append("n_position")
    if settings.get("memory_parts") == n_part:
        found.append("memory_parts")
    return found


def _require_setting(path: Path, key: str, flags: Collection[str], entry: Entry) -> None:
    """Raise `UsageError` unless a key of a file is a flag."""
    require(key not in _BY_FLAG_ONLY, f"{path}: {key}: give it on the command line, as --{key}")
    if f"--{key}" in flags:
        return
    if key in NAMES_ELSEWHERE:
        hint = f"here it is {NAMES_ELSEWHERE[key]}"
    else:
        names = {flag.removeprefix("--") for flag in flags}
        near = difflib.get_close_matches(key, sorted(names), n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}?" if near else "see --help"
        if entry != "train":
            hint = f"none of {entry}.py; one of train.py stands below [train]"
    raise UsageError(f"{path}: {key}: no such setting; {hint}")
