"""Metrics of a run: metrics.jsonl for programs, TensorBoard for people."""

import json
import math
import os
import platform
import struct
import subprocess
import sys
import time
from collections.abc import Iterable
from io import BytesIO, FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

from txl.config import require
from txl.files import naming, written_whole

_CURVES = {
    "train/nll_nats": "loss/train_nats_per_token",
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
    "speed/mfu_share": "speed_and_memory/share_of_peak_operations",
    "mem/peak_gib": "speed_and_memory/peak_GiB",
}
"""Names in TensorBoard, whose groups stand in alphabetical order: first what people look for first."""
_TOGETHER = {
    "train and valid": {
        "loss": ["Multiline", ["loss/train_nats_per_token", "loss/valid_nats_per_token"]],
        "perplexity": ["Multiline", ["perplexity/train", "perplexity/valid"]],
    }
}
"""Curves that the tab of custom scalars shows in one chart."""
_HYPERPARAMETERS = (
    *("n_layer", "d_model", "n_head", "d_head", "d_inner", "position", "attention", "tgt_len", "mem_len"),
    *("batch_size", "optim", "lr", "scheduler", "warmup_step", "max_step", "dropout", "dropatt", "weight_decay"),
    *("clip", "ema", "dtype", "seed"),
)
RECORDS, CURVES = "metrics.jsonl", "tensorboard"
"""A file and a folder in a run's folder."""
_OURS = ".txl"
"""Ends the names of our event files: others are never removed."""


class Metrics:
    """What is measured in a run, for people and programs; a context manager.

    Curves go to TensorBoard, and every record to metrics.jsonl, a JSON object a line, with units in the keys. The first
    record of each start says what was started.

    Args:
        work_dir: the run's folder; None writes nothing, as on all ranks but the first.
        resumed_from: the step of the checkpoint that the run goes on from; what was recorded of later ones is dropped.
        owes_evaluation: the evaluation of that step is still to be made.
    """

    def __init__(
        self, work_dir: Path | None, resumed_from: int | None = None, *, owes_evaluation: bool = False
    ) -> None:
        self._records: FileIO | None = None
        self._curves: FileIO | None = None
        if work_dir is not None:
            if resumed_from is not None:
                _cut(work_dir / RECORDS, resumed_from, owes_evaluation=owes_evaluation)
            # no buffers: nothing pends when the disk is full or the process is killed
            self._records = (work_dir / RECORDS).open("ab", buffering=0)
            (work_dir / CURVES).mkdir(exist_ok=True)
            name = f"events.out.tfevents.{int(time.time())}.{platform.node()}.{os.getpid()}{_OURS}"
            self._curves = (work_dir / CURVES / name).open("ab", buffering=0)
            self._event(file_version="brain.Event:2")
            if resumed_from is not None:  # TensorBoard drops points from this step on that older files hold
                self._event(step=resumed_from + 1, session_log={"status": 1})

    def start(self, **what: Any) -> None:
        """The first record of a start; the configurations are TensorBoard's hyperparameters."""
        self._record({"kind": "start", **what})
        if self._curves is not None:
            from torch.utils.tensorboard.summary import custom_scalars, hparams

            values = {**what.get("model", {}), **what.get("context", {}), **what.get("train", {})}
            shown = {name: values[name] for name in _HYPERPARAMETERS if values.get(name) is not None}
            for summary in (*hparams(shown, {"perplexity/valid": 0, "perplexity/test": 0}), custom_scalars(_TOGETHER)):
                self._event(summary=summary)

    def add(self, kind: str, step: int, values: dict[str, float], **place: int) -> None:
        """A record of measurements, and a point of each curve.

        Args:
            kind: train, valid or test.
            values: by name, for example "train/nll_nats" or "speed/tok_per_s".
            place: what else tells where the training was; no curves.
        """
        self._record({"kind": kind, "step": step, "time/unix_s": time.time(), **place, **values})
        if self._curves is not None:
            from tensorboard.compat.proto.summary_pb2 import Summary

            points = [Summary.Value(tag=_CURVES.get(name, name), simple_value=v) for name, v in values.items()]
            self._event(step=step, summary=Summary(value=points))

    def add_text(self, name: str, step: int, text: str) -> None:
        """A text for people to look at, in TensorBoard only."""
        if self._curves is not None:
            from torch.utils.tensorboard.summary import text as summary

            verbatim = "    " + text.replace("\n", "\n    ")  # in Markdown
            self._event(step=step, summary=summary(name, verbatim))

    def _record(self, record: dict[str, Any]) -> None:
        if self._records is not None:
            finite = {name: finite_or_none(value) for name, value in record.items()}
            _append(self._records, json.dumps(finite, allow_nan=False).encode() + b"\n")

    def _event(self, **fields: Any) -> None:
        """Without torch's SummaryWriter, whose thread cannot tell us that the disk is full."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        assert self._curves is not None
        content = BytesIO()
        RecordWriter(content).write(Event(wall_time=time.time(), **fields).SerializeToString())
        _append(self._curves, content.getvalue())

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in (self._records, self._curves):
            if file is not None:
                file.close()


def show_pictures(work_dir: Path, pictures: Iterable[Path]) -> None:
    """Show PNG files of an evaluation in the TensorBoard of a run that has one and can be written to."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder = work_dir / CURVES
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return
    images = [Summary.Value(tag=f"pictures/{p.stem}", image=_image(p)) for p in pictures if p.suffix == ".png"]
    if images:
        name = f"events.out.tfevents.{int(time.time())}.{platform.node()}.{os.getpid()}.pictures{_OURS}"
        with (folder / name).open("ab") as file:
            writer = RecordWriter(file)
            for fields in ({"file_version": "brain.Event:2"}, {"summary": Summary(value=images)}):
                writer.write(Event(wall_time=time.time(), **fields).SerializeToString())


def _image(path: Path) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary

    png = path.read_bytes()
    width, height = struct.unpack(">II", png[16:24])  # of the header that every PNG begins with
    return Summary.Image(width=width, height=height, colorspace=4, encoded_image_string=png)


def finite_or_none(value: Any) -> Any:
    """JSON has no word for numbers that are not finite: None."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def require_own_records(work_dir: Path) -> None:
    """Raise `UsageError` if the folder's records are not of a run of ours, to which they could be added."""
    path = work_dir / RECORDS
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as file:
            ours = file.readline(2**20).startswith(b'{"kind": "start", ')
        require(ours, f"{path}: not written by txl; name another folder with --work_dir, or move the file")


def remove_records(work_dir: Path) -> None:
    """Remove what `Metrics` has written, and nothing else."""
    (work_dir / RECORDS).unlink(missing_ok=True)
    for path in (work_dir / CURVES).glob(f"events.out.tfevents.*{_OURS}"):
        path.unlink()


def _append(file: FileIO, content: bytes) -> None:
    """All or nothing: on a full disk a file would end in half a record, to which the next one would be glued."""
    begin = os.fstat(file.fileno()).st_size
    with naming(Path(file.name)):
        try:
            while content:
                content = content[file.write(content) :]
        except BaseException:
            os.ftruncate(file.fileno(), begin)
            raise


def _cut(path: Path, step: int, *, owes_evaluation: bool) -> None:
    """Drop the records of later steps, which are made again, and half a line at the end."""
    if not path.is_file():
        return
    with path.open("rb") as old, written_whole(path) as temporary, temporary.open("wb") as new:
        for line in old:
            try:
                record = json.loads(line)
                late = record.get("step", 0) > step or (
                    owes_evaluation and record.get("kind") == "valid" and record["step"] == step
                )
            except (ValueError, AttributeError, TypeError):  # not ours to judge, but for the last one cut short
                late = not line.endswith(b"\n")
            if not late:
                new.write(line if line.endswith(b"\n") else line + b"\n")


def provenance() -> dict[str, Any]:
    """The command line, versions, and the commit of the code, with a flag if it was changed since."""
    import torch

    def git(*words: str) -> str | None:
        try:
            here = Path(__file__).parent
            return subprocess.run(
                ["git", "-C", str(here), *words], capture_output=True, text=True, timeout=10, check=True
            ).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return None

    status = git("status", "--porcelain", "--untracked-files=no")
    return {
        "command": sys.argv,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "git_commit": git("rev-parse", "HEAD"),
        "git_dirty": None if status is None else bool(status),
    }
