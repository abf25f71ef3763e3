"""Opening a checkpoint: its folder and its config.json."""

import fnmatch
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txl.checkpoint.folder import RECORD, WEIGHTS, checkpoints, damaged, is_checkpoint, point, pointed
from txl.checkpoint.save import FORMAT, digest_of
from txl.checkpoint.shards import SHARDS, shards_in
from txl.config import Context, ModelConfig, UsageError
from txl.files import sha256
from txl.records import read_json, require_fields

_FIELDS = {
    **{"format": int, "step": int, "best": bool, "parameters": int, "versions": dict[str, str]},
    **{"model": dict[str, Any], "context": dict[str, Any], "train": dict[str, Any], "data": dict[str, Any]},
    **{"attachments": dict[str, str], "files": dict[str, str], "texts": dict[str, str]},
}
"""The fields of config.json that are checked; there may be others."""
_FOREIGN = ("model.pt", "checkpoint_best.pt", "checkpoint_last.pt", "pytorch_model.bin")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's folder and the content of its config.json. `load_model` reads the weights."""

    folder: Path
    record: dict[str, Any]
    model_config: ModelConfig
    context: Context

    def attachment(self, name: str) -> str:
        """The text attached under this name. Raises `UsageError` if its checksum is wrong."""
        try:
            content = (self.folder / name).read_bytes()
            if digest_of(content) == self.record.get("attachments", {}).get(name):
                return content.decode()
        except (OSError, UnicodeDecodeError):
            pass
        raise damaged(self.folder / name)

    def fingerprint(self) -> str:
        """Hex digest of the weights; of shards, with the optimizer state beside them."""
        shards = shards_in(self.folder)
        return digest_of("".join(map(sha256, shards)).encode()) if shards else sha256(self.folder / WEIGHTS)

    def require_shards(self) -> None:
        """Raise `UsageError` unless all files of the ranks are there and have their checksums."""
        noted = fnmatch.filter(self.record.get("files", {}), SHARDS)
        for path in {*(self.folder / name for name in noted), *shards_in(self.folder)}:
            self.require_digest(path)

    def require_digest(self, path: Path) -> None:
        """Raise `UsageError` unless a file is there and has its checksum of config.json, if there is one."""
        digest = self.record.get("files", {}).get(path.name)
        if not path.is_file() or (digest is not None and sha256(path) != digest):
            raise damaged(path)


def open_checkpoint(path: Path) -> Checkpoint:
    """The best checkpoint in a run directory, else its last; or the one in the given folder. Raises `UsageError` if
    there is none, or it is damaged."""
    if _is_foreign(path):
        raise UsageError(
            f"--work_dir {path}: a checkpoint of another program; make a run folder of it with "
            f"python -m txl.convert {path} RUN"
        )
    if path.is_file():
        raise UsageError(f"--work_dir {path}: is a file; name its folder, {path.parent}")
    if not path.is_dir():
        raise UsageError(f"--work_dir {path}: no such folder; give the folder of a run, as in train.py --work_dir")
    if is_checkpoint(path):
        return open_folder(path)
    best = pointed(path / "best")
    return last_checkpoint(path) if best is None else open_folder(path / best)


def _is_foreign(path: Path) -> bool:
    """True for a checkpoint of the 2019 code, of NVIDIA's or of Hugging Face's, or its folder, if no run is in it."""
    if path.is_file() or checkpoints(path):
        return path.name in _FOREIGN
    try:
        record = read_json(path / RECORD)
        if "format" in record or "model_type" in record:
            return "format" not in record
    except (OSError, ValueError, TypeError):
        pass
    return any((path / name).is_file() for name in _FOREIGN)


def last_checkpoint(run: Path) -> Checkpoint:
    """The checkpoint of the highest step. Raises `UsageError` if there is none, or it is damaged."""
    return open_folder(require_some(run)[-1])


def point_at_best(run: Path) -> bool:
    """Point `best` to the last checkpoint saved as the best one; a kill may have prevented that. If there is none, not
    even a damaged one, `best` is removed. Returns whether there is one."""
    was, keep = pointed(run / "best"), False
    for folder in reversed(checkpoints(run)):
        try:
            is_best = open_folder(folder).record.get("best", folder.name == was)
        except UsageError:  # damaged
            keep = keep or folder.name == was
            continue
        if is_best:
            point(run / "best", folder.name)
            return True
    if not keep:
        (run / "best").unlink(missing_ok=True)
    return keep


def open_folder(folder: Path) -> Checkpoint:
    """The checkpoint in a folder. Raises `UsageError` if it is damaged."""
    path = folder / RECORD
    try:
        record = read_json(path)
        if not isinstance(record, dict):
            raise ValueError("holds no JSON object")
        if record.get("format") != FORMAT:
            raise ValueError(f"of format {record.get('format')}, this txl reads {FORMAT}")
        require_fields({name: value for name, value in record.items() if name in _FIELDS}, _FIELDS)
        model = ModelConfig(**require_fields(record["model"], ModelConfig))
        context = Context(**require_fields(record["context"], Context))
        return Checkpoint(folder, {"step": 0, **record}, model, context)
    except (OSError, KeyError, json.JSONDecodeError, UnicodeDecodeError):
        raise damaged(path) from None
    except ValueError as error:
        raise damaged(path, error) from None


def require_some(run: Path) -> list[Path]:
    """The checkpoints of a run by step. Raises `UsageError` if there is none."""
    found = checkpoints(run)
    if not found:
        raise UsageError(f"--work_dir {run}: holds no checkpoint; train first, or give the folder of another run")
    return found
