"""Checkpoints: a folder each, whole or not there.

    run/step_00004000/config.json         configurations, step, validation loss, versions: readable
                      model.safetensors   the parameters, tied ones once
                      vocab.txt, ...      what the caller attaches
    run/latest, run/best                  each holds the name of such a folder

A checkpoint is written under a temporary name, flushed and renamed; `latest` and `best` move afterwards, and folders
neither of them names are removed.
"""

import json
import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from txl.config import Context, ModelConfig, UsageError, as_dict
from txl.model import TransformerXL

FORMAT = 1
_RECORD, _WEIGHTS = "config.json", "model.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's folder and what its config.json says; the weights are read by `load_model`."""

    folder: Path
    record: dict[str, Any]
    model_config: ModelConfig
    context: Context

    def attachment(self, name: str) -> str:
        """The text that was attached under this name when the checkpoint was saved."""
        try:
            return (self.folder / name).read_text(encoding="utf-8")
        except (FileNotFoundError, UnicodeDecodeError):
            raise _damaged(self.folder / name) from None


def save_checkpoint(
    run: Path,
    model: TransformerXL,
    context: Context,
    *,
    step: int,
    best: bool,
    record: Mapping[str, Any],
    attachments: Mapping[str, str],
) -> Path:
    """Write the checkpoint of a step, let `latest` (and `best`) name it, and remove those nobody names any more.

    Args:
        record: what else config.json shall hold.
        attachments: text files to keep with the weights, by name.
    Returns:
        The checkpoint's folder.
    """
    folder = run / f"step_{step:08d}"
    if not folder.is_dir():
        temporary = run / f".{folder.name}.{os.getpid()}.tmp"
        try:
            temporary.mkdir(parents=True)
            save_file({name: p.detach().contiguous() for name, p in model.named_parameters()}, temporary / _WEIGHTS)
            texts = {_RECORD: json.dumps(_full_record(model, context, step, record), indent=1) + "\n", **attachments}
            for name, text in texts.items():
                (temporary / name).write_text(text, encoding="utf-8")
            for file in (*temporary.iterdir(), temporary):
                _flush(file)
            temporary.rename(folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    for pointer in ("latest", "best") if best else ("latest",):
        _point(run / pointer, folder.name)
    named = {_pointed(run / pointer) for pointer in ("latest", "best")}
    for old in run.glob("step_*"):
        if old.name not in named:
            shutil.rmtree(old)
    return folder


def has_checkpoint(run: Path) -> bool:
    """True if a run has left a checkpoint in this folder."""
    return any(_pointed(run / pointer) for pointer in ("best", "latest"))


def remove_checkpoints(run: Path) -> None:
    """Forget all checkpoints of a run."""
    for pointer in ("latest", "best"):
        (run / pointer).unlink(missing_ok=True)
    for old in run.glob("step_*"):
        shutil.rmtree(old)


def open_checkpoint(path: Path) -> Checkpoint:
    """The best checkpoint of a run's folder, else its latest; or the one whose folder is given.

    Raises:
        UsageError: if there is none, or it is damaged.
    """
    if not path.is_dir():
        raise UsageError(f"--work_dir {path}: no such folder; give the folder of a run, as in train.py --work_dir")
    folder = path
    if not (path / _RECORD).is_file():
        name = _pointed(path / "best") or _pointed(path / "latest")
        if name is None:
            raise UsageError(f"--work_dir {path}: holds no checkpoint; train first, or give the folder of another run")
        folder = path / name
    try:
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        return Checkpoint(folder, record, ModelConfig(**record["model"]), Context(**record["context"]))
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        raise _damaged(folder / _RECORD) from None


def load_model(checkpoint: Checkpoint) -> TransformerXL:
    """The model with its trained weights, in evaluation mode, without dropout.

    Raises:
        UsageError: if the weights are damaged or do not fit the configuration.
    """
    path = checkpoint.folder / _WEIGHTS
    try:
        saved = load_file(path)
    except (FileNotFoundError, SafetensorError):
        raise _damaged(path) from None
    model = TransformerXL(checkpoint.model_config)
    parameters = dict(model.named_parameters())
    if {n: p.shape for n, p in parameters.items()} != {n: t.shape for n, t in saved.items()}:
        raise UsageError(f"{path}: the weights do not fit {_RECORD} beside them; use another checkpoint")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(saved[name])
    return model.eval()


def _full_record(model: TransformerXL, context: Context, step: int, record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "step": step,
        "model": as_dict(model.config),
        "context": as_dict(context),
        "parameters": sum(p.numel() for p in model.parameters()),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        **record,
    }


def _damaged(path: Path) -> UsageError:
    return UsageError(f"{path}: missing, truncated or damaged; use another checkpoint of the run, or train again")


def _pointed(pointer: Path) -> str | None:
    try:
        return pointer.read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None


def _point(pointer: Path, name: str) -> None:
    temporary = pointer.with_name(f".{pointer.name}.{os.getpid()}.tmp")
    temporary.write_text(name + "\n", encoding="utf-8")
    _flush(temporary)
    temporary.replace(pointer)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
