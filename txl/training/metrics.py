"""Metrics of a run: metrics.jsonl for programs, TensorBoard for people."""

import os
import platform
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from io import BytesIO, FileIO
from pathlib import Path
from typing import Any

from txl.config import UsageError, require
from txl.files import (
    RECORDS_BEGIN,
    append_whole,
    begins_with,
    not_through_a_link,
    require_no_link,
    written_whole,
)
from txl.ops import processor
from txl.runtime.records import json_text, parse_json, read_json_lines

_CURVES = {
    "train/nll_nats": "loss/train_nats_per_token",
    "train/memory_loss": "loss/train_memory",
    "valid/nll_nats": "loss/valid_nats_per_token",
    "valid/bits_per_character": "loss/valid_bits_per_character",
    "test/nll_nats": "loss/test_nats_per_token",
    "train/ppl": "perplexity/train",
    "valid/ppl": "perplexity/valid",
    "test/ppl": "perplexity/test",
    "train/lr": "rate_and_gradient/learning_rate",
    "train/grad_norm": "rate_and_gradient/gradient_norm",
    "speed/tok_per_s": "speed_and_memory/tokens_per_second",
    "speed/ms_per_step": "speed_and_memory/milliseconds_per_step",
    "speed/cpu_ms_per_step": "speed_and_memory/milliseconds_of_all_cores_per_step",
    "speed/mfu_share": "speed_and_memory/share_of_peak_operations",
    "mem/peak_gib": "speed_and_memory/peak_GiB",
}
"""Names in TensorBoard, which sorts groups alphabetically: the most important come first."""
_TOGETHER = {
    "train and valid": {
        "loss": ["Multiline", ["loss/train_nats_per_token", "loss/valid_nats_per_token"]],
        "perplexity": ["Multiline", ["perplexity/train", "perplexity/valid"]],
    }
}
"""Curves that the custom scalars tab shows in one chart."""
_HYPERPARAMETERS = (
    *(
        "n_layer",
        "d_model",
        "n_head",
        "d_head",
        "d_inner",
        "position",
        "attention",
        "memory",
        "tgt_len",
        "mem_len",
    ),
    *(
        "batch_size",
        "optim",
        "lr",
        "scheduler",
        "warmup_step",
        "max_step",
        "dropout",
        "dropatt",
        "weight_decay",
    ),
    *("clip", "ema", "dtype", "seed"),
)
RECORDS = "metrics.jsonl"
CURVES = "tensorboard"
LOG = "log.txt"
"""Two files and a folder in the run directory; the log is what a training prints."""
LOG_BEGINS = "=== "
"""With which the log of each start begins."""
_OURS = ".txl"
_VERSION = "brain.Event:2"
"""The suffix of our event files (others are never removed), and their format."""


class Metrics:
    """The measurements of a run; a context manager.

    Curves go to TensorBoard, and every record to metrics.jsonl, one JSON object per line, with
    units in the keys. The first record of each start holds versions and configurations.

    Args:
        work_dir: the run directory; None writes nothing, as on all ranks but the first.
        resumed_from: the step of the checkpoint that the run resumes from; records of later steps
            are dropped.
        owes_evaluation: the evaluation of that step will be repeated.
    """

    def __init__(
        self,
        work_dir: Path | None,
        resumed_from: int | None = None,
        *,
        owes_evaluation: bool = False,
    ) -> None:
        self._records: FileIO | None = None
        self._curves: FileIO | None = None
        if work_dir is not None:
            if resumed_from is not None:
                _cut(work_dir / RECORDS, resumed_from, owes_evaluation=owes_evaluation)
            # unbuffered: nothing is lost when the process is killed
            records = work_dir / RECORDS
            self._records = open(  # noqa: SIM115
                records, "ab", buffering=0, opener=not_through_a_link
            )
            (work_dir / CURVES).mkdir(exist_ok=True)
            events = work_dir / CURVES / _event_file()
            self._curves = open(  # noqa: SIM115
                events, "ab", buffering=0, opener=not_through_a_link
            )
            self._add_event(file_version=_VERSION)
            if resumed_from is not None:  # TensorBoard then drops later points of older files
                self._add_event(step=resumed_from + 1, session_log={"status": 1})

    def start(self, **what: Any) -> None:
        """Write the first record of a start; TensorBoard gets the configurations as
        hyperparameters.
        """
        self._record({"kind": "start", "time/unix_s": time.time(), **what})
        if self._curves is not None:
            from torch.utils.tensorboard.summary import custom_scalars, hparams

            values = {**what.get("model", {}), **what.get("context", {}), **what.get("train", {})}
            shown = {}
            for name in _HYPERPARAMETERS:
                if values.get(name) is not None:
                    shown[name] = values[name]
            for summary in (
                *hparams(shown, {"perplexity/valid": 0, "perplexity/test": 0}),
                custom_scalars(_TOGETHER),
            ):
                self._add_event(summary=summary)

    def add(self, kind: str, step: int, values: dict[str, float], **position: int) -> None:
        """Write a record of measurements, and a point of each curve.

        Args:
            kind: train, valid or test.
            values: by name, for example "train/nll_nats" or "speed/tok_per_s".
            position: counters, without curves.
        """
        self._record({"kind": kind, "step": step, "time/unix_s": time.time(), **position, **values})
        points = []
        for name, value in values.items():
            points.append({"tag": _CURVES.get(name, name), "simple_value": value})
        self._add_event(step=step, summary={"value": points})

    def add_text(self, name: str, step: int, text: str) -> None:
        """Add a text to TensorBoard."""
        if self._curves is not None:
            from torch.utils.tensorboard.summary import text as summary

            verbatim = "    " + text.replace("\n", "\n    ")  # in Markdown
            self._add_event(step=step, summary=summary(name, verbatim))

    def _record(self, record: dict[str, Any]) -> None:
        if self._records is not None:
            append_whole(self._records, json_text(record, indent=None).encode())

    def _add_event(self, **fields: Any) -> None:
        if self._curves is not None:
            append_whole(self._curves, _event(**fields))

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self._records, self._curves):
            if file is not None:
                file.close()


def show_pictures(work_dir: Path, pictures: Iterable[Path]) -> None:
    """Add PNG files of an evaluation to the TensorBoard of a run, if it has one that can be written
    to.
    """
    folder = work_dir / CURVES
    if folder.is_symlink() or not folder.is_dir() or not os.access(folder, os.W_OK):
        return
    images = []
    for path in pictures:
        if path.suffix == ".png":
            images.append({"tag": f"pictures/{path.stem}", "image": _image(path)})
    if images:
        with open(folder / _event_file(".pictures"), "ab", opener=not_through_a_link) as file:
            file.write(_event(file_version=_VERSION) + _event(summary={"value": images}))


def _image(path: Path) -> dict[str, Any]:
    png = path.read_bytes()
    width, height = struct.unpack(">II", png[16:24])  # of the PNG header
    return {"width": width, "height": height, "colorspace": 4, "encoded_image_string": png}


def _event_file(kind: str = "") -> str:
    return f"events.out.tfevents.{int(time.time())}.{platform.node()}.{os.getpid()}{kind}{_OURS}"


def _event(**fields: Any) -> bytes:
    """An event in TensorBoard's file format. Not by torch's SummaryWriter, whose thread hides
    errors such as a full disk.
    """
    from tensorboard.compat.proto import event_pb2
    from tensorboard.summary.writer.record_writer import RecordWriter

    content = BytesIO()
    event: Any = event_pb2
    RecordWriter(content).write(event.Event(wall_time=time.time(), **fields).SerializeToString())
    return content.getvalue()


def records_of(run: Path | None) -> list[dict[str, Any]]:
    """The records of a run, given by its folder or one of its checkpoints; empty if it has none.
    Raises `UsageError` if they are damaged.
    """
    if run is None:
        return []
    for folder in (run, run.absolute().parent):
        path = folder / RECORDS
        if not path.is_file():
            continue
        try:
            records = read_json_lines(path)
        except ValueError:
            raise _damaged(path) from None
        if not all(isinstance(record, dict) for record in records):
            raise _damaged(path)
        return records
    return []


def _damaged(path: Path) -> UsageError:
    return UsageError(f"{path}: damaged; repair it, or move it away")


def validation_curve(run: Path) -> list[tuple[int, float]]:
    """Tokens read and nats per token of each validation of a run, given by its folder or one of its
    checkpoints; empty if the run has no records. Raises `UsageError` if they are damaged.
    """
    records = records_of(run)
    try:
        return curve_of(records)
    except (KeyError, TypeError):
        raise _damaged(run / RECORDS) from None


def curve_of(records: Iterable[Mapping[str, Any]]) -> list[tuple[int, float]]:
    """Tokens read and nats per token of each validation among the records of a run."""
    valid = [record for record in records if record["kind"] == "valid"]
    points = []
    for record in valid:
        if record["valid/nll_nats"]:
            points.append((record["tokens"], record["valid/nll_nats"]))
    return points


def require_own_records(work_dir: Path) -> None:
    """Raise `UsageError` if the folder has records or a log that txl has not written, `OSError` if
    records, curves or the log would be written through a link.
    """
    path = work_dir / RECORDS
    require_no_link(path)
    require_no_link(work_dir / CURVES)
    require_no_link(work_dir / LOG)
    if path.is_file() and path.stat().st_size:
        require(
            begins_with(path, RECORDS_BEGIN),
            f"{path}: not written by txl; name another folder with --work_dir, or move the file",
        )
    log = work_dir / LOG
    if log.is_file() and log.stat().st_size:
        require(
            begins_with(log, LOG_BEGINS.encode()),
            f"{log}: not written by txl; name another folder with --work_dir, or move the file",
        )


def remove_records(work_dir: Path) -> None:
    """Remove the files of `Metrics`, and nothing else."""
    (work_dir / RECORDS).unlink(missing_ok=True)
    for path in (work_dir / CURVES).glob(f"events.out.tfevents.*{_OURS}"):
        path.unlink()


def _cut(path: Path, step: int, *, owes_evaluation: bool) -> None:
    """Drop the records of later steps, and an incomplete last line."""
    if not path.is_file():
        return
    with path.open("rb") as old, written_whole(path) as temporary, temporary.open("wb") as new:
        for line in old:
            try:
                record = parse_json(line)
                late = record.get("step", 0) > step or (
                    owes_evaluation and record.get("kind") == "valid" and record["step"] == step
                )
            # keep lines of others, but not an incomplete last one
            except (ValueError, AttributeError, TypeError):
                late = not line.endswith(b"\n")
            if not late:
                new.write(line if line.endswith(b"\n") else line + b"\n")


def provenance() -> dict[str, Any]:
    """The command line, versions, the processor, the commit of the code, and whether it has
    uncommitted changes.
    """
    import torch

    from txl import __version__

    def git(*words: str) -> str | None:
        try:
            here = Path(__file__).parent
            return subprocess.run(
                ["git", "-C", str(here), *words],
                capture_output=True,
                text=True,
                timeout=10,
                check=True,
            ).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return None

    status = git("status", "--porcelain", "--untracked-files=no")
    return {
        "command": sys.orig_argv[1:],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": processor.NAME,
        "txl": __version__,
        "git_commit": git("rev-parse", "HEAD"),
        "git_dirty": None if status is None else bool(status),
    }
