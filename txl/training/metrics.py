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
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

from txl.files import naming

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


class Metrics:
    """What is measured in a run, for people and programs; a context manager.

    Curves go to TensorBoard, and every record to metrics.jsonl, a JSON object a line, with units in the keys. The first
    record of each start says what was started.

    Args:
        work_dir: the run's folder; None writes nothing, as on all ranks but the first.
    """

    def __init__(self, work_dir: Path | None) -> None:
        self._records: FileIO | None = None
        self._curves: FileIO | None = None
        if work_dir is not None:
            # no buffers: nothing pends when the disk is full or the process is killed
            self._records = (work_dir / RECORDS).open("ab", buffering=0)
            (work_dir / CURVES).mkdir(exist_ok=True)
            name = f"events.out.tfevents.{int(time.time())}.{platform.node()}.{os.getpid()}"
            self._curves = (work_dir / CURVES / name).open("ab", buffering=0)
            self._event(file_version="brain.Event:2")

    def start(self, **what: Any) -> None:
        """The first record of a start; the configurations are TensorBoard's hyperparameters."""
        self._record({"kind": "start", **what})
        if self._curves is not None:
            from torch.utils.tensorboard.summary import custom_scalars, hparams

            values = {**what.get("model", {}), **what.get("context", {}), **what.get("train", {})}
            shown = {name: values[name] for name in _HYPERPARAMETERS if values.get(name) is not None}
            for summary in (*hparams(shown, {"perplexity/valid": 0, "perplexity/test": 0}), custom_scalars(_TOGETHER)):
                self._event(summary=summary)

    def add(self, kind: str, step: int, values: dict[str, float]) -> None:
        """A record of measurements, and a point of each curve.

        Args:
            kind: train or valid.
            values: by name, for example "train/nll_nats" or "speed/tok_per_s".
        """
        self._record({"kind": kind, "step": step, **values})
        if self._curves is not None:
            from tensorboard.compat.proto.summary_pb2 import Summary

            points = [Summary.Value(tag=_CURVES.get(name, name), simple_value=v) for name, v in values.items()]
            self._event(step=step, summary=Summary(value=points))

    def add_text(self, name: str, step: int, text: str) -> None:
        """A text for people to look at, in TensorBoard only."""
        if self._curves is not None:
            from torch.utils.tensorboard.summary import text as summary

            self._event(
                step=step, summary=summary(name, "    " + text.replace("\n", "\n    "))
            )  # as it is, in Markdown

    def _record(self, record: dict[str, Any]) -> None:
        if self._records is not None:
            with naming(Path(self._records.name)):
                self._records.write(json.dumps(_finite(record), allow_nan=False).encode() + b"\n")

    def _event(self, **fields: Any) -> None:
        """Without torch's SummaryWriter, whose thread cannot tell us that the disk is full."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        assert self._curves is not None
        with naming(Path(self._curves.name)):
            RecordWriter(self._curves).write(Event(wall_time=time.time(), **fields).SerializeToString())

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
        name = f"events.out.tfevents.{int(time.time())}.{platform.node()}.{os.getpid()}.pictures"
        with (folder / name).open("ab") as file:
            writer = RecordWriter(file)
            for fields in ({"file_version": "brain.Event:2"}, {"summary": Summary(value=images)}):
                writer.write(Event(wall_time=time.time(), **fields).SerializeToString())


def _image(path: Path) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary

    png = path.read_bytes()
    width, height = struct.unpack(">II", png[16:24])  # of the header that every PNG begins with
    return Summary.Image(width=width, height=height, colorspace=4, encoded_image_string=png)


def _finite(record: dict[str, Any]) -> dict[str, Any]:
    """JSON has no word for numbers that are not finite: None."""
    bad = {name for name, value in record.items() if isinstance(value, float) and not math.isfinite(value)}
    return {name: None if name in bad else value for name, value in record.items()}


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
