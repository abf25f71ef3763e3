"""Opening a checkpoint: its folder and its config.json."""

import fnmatch
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txl.checkpoint.folder import (
    DIGESTS,
    RECORD,
    SHARDS,
    WEIGHTS,
    Digests,
    checkpoints,
    damaged,
    digest_of,
    is_checkpoint,
    point,
    pointed,
    read_digests,
    shards_in,
    unpoint,
)
from txl.checkpoint.save import FORMAT
from txl.config import Context, ModelConfig, UsageError, hints_of
from txl.files import content_of, sha256
from txl.registry import PARTS, names_of_settings, settings_before
from txl.runtime.records import parse_json, require_fields

_FIELDS = {
    **{"format": int, "step": int, "best": bool, "parameters": int, "versions": dict[str, str]},
    **{
        "model": dict[str, Any],
        "context": dict[str, Any],
        "train": dict[str, Any],
        "data": dict[str, Any],
    },
    **{"attachments": dict[str, str], "files": dict[str, str], "texts": dict[str, str]},
    **{
        "reading": dict[str, str | bool],
        "rates": dict[str, float],
        "valid_nats_per_token": float | None,
    },
    **{"converted_from": dict[str, str | list[str]]},
}
"""The fields of config.json that are checked; there may be others."""
_GONE_LENGTHS = ("lookup_faiss",)
"""Fields of `context` that were there between versions 0.2 and 0.3."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's folder and the content of its config.json. `load_model` reads the weights.

    Attributes:
        digests: of its files.
        names_all: `digests` has all of them, which checkpoints of version 0.2 and before had not.
    """

    folder: Path
    record: dict[str, Any]
    model_config: ModelConfig
    context: Context
    digests: Digests
    names_all: bool

    def attachment(self, name: str) -> str:
        """The text attached under this name. Raises `UsageError` if its digest is wrong."""
        try:
            content = content_of(self.folder / name)
            if digest_of(content) in self.digests.get(name, ()):
                return content.decode()
        except (OSError, UnicodeDecodeError):
            pass
        raise damaged(self.folder / name)

    def fingerprint(self) -> str:
        """Hex digest of the weights, whose digests were compared before; of shards, with the
        optimizer state beside them. A training may have removed the files meanwhile.
        """
        shards = sorted(fnmatch.filter(self.digests, SHARDS)) or [
            path.name for path in shards_in(self.folder)
        ]
        if shards:
            return digest_of("".join(map(self._digest, shards)).encode())
        return self._digest(WEIGHTS)

    def _digest(self, name: str) -> str:
        known = list(self.digests.get(name, ()))
        if len(known) == 1:
            return known[0]
        return sha256(self.folder / name)

    def require_shards(self) -> None:
        """Raise `UsageError` unless all files of the ranks are there and have their digests."""
        noted = fnmatch.filter(self.digests, SHARDS)
        for path in {*(self.folder / name for name in noted), *shards_in(self.folder)}:
            self.require_digest(path)

    def require_digest(self, path: Path) -> None:
        """Raise `UsageError` unless a file is there and has its digest, if there is one."""
        known = self.digests.get(path.name, () if self.names_all else None)
        if not path.is_file() or (known is not None and sha256(path) not in known):
            raise damaged(path)


def open_checkpoint(path: Path) -> Checkpoint:
    """The best checkpoint in a run directory, else its last; or the one in the given folder. Raises
    `UsageError` if there is none, or it is damaged.
    """
    if path.is_file():
        raise UsageError(f"{path}: is a file; name its folder, {path.parent}")
    if not path.is_dir():
        raise UsageError(
            f"{path}: no such folder; give the folder of a run, as in train.py --work_dir"
        )
    if is_checkpoint(path):
        return open_folder(path)
    best, error = _best_checkpoint(path)
    if error is not None:
        raise error
    if best is None:
        return last_checkpoint(path)
    return best


def last_checkpoint(run: Path) -> Checkpoint:
    """The checkpoint of the highest step.

    Raises `UsageError` if there is none, or it is damaged.
    """
    return open_folder(require_some(run)[-1])


def point_at_best(run: Path) -> bool:
    """Point `best` to the last checkpoint saved as the best one; a kill may have prevented that. If
    there is none, not even a damaged one, `best` is removed. Returns whether there is one.
    """
    best, error = _best_checkpoint(run)
    if best is not None:
        point(run / "best", best.folder.name)
    elif error is None:
        unpoint(run / "best")
    return best is not None or error is not None


def _best_checkpoint(run: Path) -> tuple[Checkpoint | None, UsageError | None]:
    """The last whole checkpoint that was saved as the best one, and the error of the one that
    `best` names if it is damaged. What the checkpoints say counts: a kill or a bad disk may have
    left another name in `best`.
    """
    named = pointed(run / "best")
    error = None
    for folder in reversed(checkpoints(run)):
        try:
            checkpoint = open_folder(folder)
        except UsageError as why:
            if folder.name == named:
                error = why
            continue
        if checkpoint.record.get("best", folder.name == named):
            return checkpoint, error
    return None, error


def open_folder(folder: Path) -> Checkpoint:
    """The checkpoint in a folder. Raises `UsageError` if it is damaged."""
    path = folder / RECORD
    digests, content = _digests_and_record(folder)
    try:
        record = parse_json(content)
        if not isinstance(record, dict):
            raise ValueError("holds no JSON object")
        if record.get("format") not in range(1, FORMAT + 1):
            raise ValueError(f"of format {record.get('format')}, this txl reads 1 to {FORMAT}")
        if digests is None and record["format"] > 1:
            raise ValueError(f"{DIGESTS} beside it is missing")
        require_fields({name: value for name, value in record.items() if name in _FIELDS}, _FIELDS)
        record["model"] = _model_fields(record["model"])
        model = ModelConfig(**record["model"])
        lengths = {}
        for name, value in record["context"].items():
            if name not in _GONE_LENGTHS:
                lengths[name] = value
        context = Context(**require_fields(lengths, Context))
    except (KeyError, json.JSONDecodeError, UnicodeDecodeError):
        raise damaged(path) from None
    except ValueError as error:
        raise damaged(path, error) from None
    of_some = {}
    for name, digest in {**record.get("files", {}), **record.get("attachments", {})}.items():
        of_some[name] = [digest]
    if digests is None:
        known = of_some
    else:
        known = digests
    return Checkpoint(
        folder, {"step": 0, **record}, model, context, known, names_all=digests is not None
    )


def _model_fields(values: Any) -> dict[str, Any]:
    """The arguments of `ModelConfig`; before version 0.3 settings of its parts stood beside them.
    What was saved before its memory had a setting is as without it, `settings_before`.
    Raises `ValueError` if one is unknown or of another type.
    """
    require_fields(values, hints_of(ModelConfig, values))
    of_parts = names_of_settings(PARTS)
    own = {}
    for name, value in values.get("own", {}).items():
        if name in of_parts:
            own[name] = value
    require_fields(own, hints_of(ModelConfig, own))
    before = settings_before(values.get("memory", ModelConfig.memory))
    return {**values, "own": {**before, **values.get("own", {})}}


def _digests_and_record(folder: Path) -> tuple[Digests | None, bytes]:
    """The digests of a checkpoint and its config.json, which has its digest. Both are read again if
    a training has written them meanwhile.
    """
    path = folder / RECORD
    while True:
        digests = read_digests(folder)
        try:
            content = content_of(path)
        except OSError:
            raise damaged(path) from None
        if digests is None or digest_of(content) in digests.get(RECORD, ()):
            return digests, content
        if read_digests(folder) == digests:
            raise damaged(path)


def require_some(run: Path) -> list[Path]:
    """The checkpoints of a run by step. Raises `UsageError` if there is none."""
    found = checkpoints(run)
    if not found:
        raise UsageError(
            f"{run}: holds no checkpoint; train first, or give the folder of another run"
        )
    return found
