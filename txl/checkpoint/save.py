"""Writing a checkpoint, and doing so while the training goes on.

It is written to a temporary folder, flushed and renamed, so that a folder named step_* is whole;
`latest` and `best` are updated afterwards. Memory is saved by stream, not by process, so that
another number of processes can resume. Where the model is sharded each rank writes its rows of
weights and optimizer state; see `txl.checkpoint.folder`.
"""

import json
import math
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from txl.checkpoint.folder import (
    OPTIMIZER,
    PROGRESS,
    RECORD,
    STREAMS,
    WEIGHTS,
    digest_of,
    name_of,
    point,
    read_digests,
    remove_old,
    set_aside,
    write_digests,
    write_shards,
)
from txl.config import Context, UsageError, as_dict
from txl.files import discard, errors_naming, flush, sha256, signals_raise, write_whole
from txl.memory import Memory
from txl.model.sizes import weights_of
from txl.model.transformer import TransformerXL
from txl.runtime.distributed import Ranks, is_in_shards
from txl.runtime.records import read_json


class Background:
    """One function at a time on a thread of its own. Its error is raised by the next `wait`."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._running: Future[object] | None = None

    def start(self, work: Callable[[], object]) -> None:
        """Begin; `wait` must have returned since the last start."""
        self._running = self._thread.submit(work)

    def wait(self) -> None:
        """Wait until the function that was started last has returned, and raise its error."""
        running = self._running
        self._running = None
        if running is not None:
            running.result()


def copied(tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """Copies of tensors in host memory, of shards those of this rank."""
    return {name: _copied(tensor.detach(), ranks) for name, tensor in tensors.items()}


def _copied(tensor: Tensor, ranks: Ranks) -> Tensor:
    if not is_in_shards(tensor):
        return tensor.to("cpu", copy=True)
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

    assert isinstance(tensor, DTensor)
    assert ranks.control is not None  # there are shards
    mesh = DeviceMesh.from_group(ranks.control, "cpu")
    local = tensor.to_local().to("cpu", copy=True)
    shape = torch.Size(tensor.shape)
    stride = tensor.stride()
    return DTensor.from_local(
        local, mesh, tensor.placements, run_check=False, shape=shape, stride=stride
    )


FORMAT = 2
"""2: the digests of all files are in a file of their own; 1: those of some were in config.json."""


@dataclass(frozen=True)
class Snapshot:
    """What a run needs besides its weights to resume exactly.

    Attributes:
        progress: JSON-ready values.
        optimizer: tensors by name.
        memory: of the streams of this process, or None.
        rng: random states of this process, by kind.
        folder: the checkpoint it was read from.
    """

    progress: dict[str, Any]
    optimizer: dict[str, Tensor] = field(repr=False)
    memory: Memory | None = field(repr=False)
    rng: dict[str, Tensor] = field(repr=False)
    folder: Path = Path()


@dataclass(frozen=True)
class CheckpointWriter:
    """Writes the checkpoints of a run.

    Attributes:
        run: the run directory.
        columns: the streams of the global batch whose memory this process holds.
        record: further fields of config.json.
        attachments: text files to keep with the weights, by name.
        keep_last: number of checkpoints to keep besides the best one.
        background: writes a copy while the training goes on; None: `save` returns when all is
            written. The group of `ranks` must then have no other use.
    """

    run: Path
    context: Context
    ranks: Ranks
    columns: slice
    record: Mapping[str, Any] = field(default_factory=dict)
    attachments: Mapping[str, str] = field(default_factory=dict)
    keep_last: int = 1
    background: Background | None = None
    _place: os.stat_result | None = field(init=False, repr=False)
    """What the run directory was at the beginning; None: it was not there."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_place", self.run.stat() if self.run.is_dir() else None)

    @contextmanager
    def finished(self) -> Iterator[None]:
        """Leave this context when nothing is written in the background any more; raises an error of
        it.
        """
        try:
            yield
        except BaseException:
            with suppress(Exception):  # the first error counts
                self.wait()
            raise
        self.wait()

    def wait(self) -> None:
        """Wait for what is written in the background, and raise its error."""
        if self.background is not None:
            self.background.wait()

    def save(
        self,
        model: TransformerXL,
        snapshot: Snapshot,
        *,
        step: int,
        best: bool,
        valid_nats: float | None = None,
    ) -> Path:
        """Write the checkpoint of a step and point `latest` (and `best`) to it. All ranks call it
        together.

        A second call for the same step, after an evaluation, rewrites config.json and progress.json
        only.

        Args:
            valid_nats: the validation loss, nats per token.
        Returns:
            The checkpoint's folder.
        Raises:
            UsageError: if the run directory was renamed or removed since the beginning.
        """
        self.wait()
        folder = self.run / name_of(step)
        config = {
            "format": FORMAT,
            "step": step,
            "best": best,
            "model": as_dict(model.config),
            "context": as_dict(self.context),
            "parameters": sum(p.numel() for p in model.parameters()),
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
            **self.record,
            "valid_nats_per_token": valid_nats
            if valid_nats is not None and math.isfinite(valid_nats)
            else None,
        }
        self.ranks.by_main(self._require_place)
        if self.ranks.by_main(lambda: _is_of_step(folder, step)):
            if self.ranks.is_main:
                _rewrite(folder, config, snapshot.progress)
            self._point(folder, best=best)
        elif self.background is None:
            self._write(folder, weights_of(model), model.is_sharded, config, snapshot)
        else:
            weights = copied(weights_of(model), self.ranks)
            snapshot = self._copied(snapshot)
            sharded = model.is_sharded
            self.background.start(lambda: self._write(folder, weights, sharded, config, snapshot))
        return folder

    def _require_place(self) -> None:
        if self._place is None or (
            self.run.is_dir() and os.path.samestat(self._place, self.run.stat())
        ):
            return
        do = "give it this name again and continue with --resume, from its last checkpoint"
        raise UsageError(
            f"--work_dir {self.run}: was renamed or removed while it was trained in; {do}"
        )

    def _copied(self, snapshot: Snapshot) -> Snapshot:
        optimizer = copied(snapshot.optimizer, self.ranks)
        memory = snapshot.memory
        if memory is not None:  # a snapshot has a copy of it
            memory = memory.to(torch.device("cpu"))
        return replace(snapshot, optimizer=optimizer, memory=memory)

    def _point(self, folder: Path, *, best: bool) -> None:
        if self.ranks.is_main:
            for pointer in ("latest", "best") if best else ("latest",):
                point(self.run / pointer, folder.name)
            remove_old(self.run, self.keep_last)
        self.ranks.barrier()  # no rank returns before the checkpoint is there

    @signals_raise()
    def _write(
        self,
        folder: Path,
        weights: dict[str, Tensor],
        sharded: bool,
        config: dict[str, Any],
        snapshot: Snapshot,
    ) -> None:
        """A whole checkpoint.

        Each rank writes its streams and, if `sharded`, its rows; rank 0 writes the rest.
        """
        temporary = folder.with_name(f".{folder.name}.tmp")
        is_main = self.ranks.is_main
        try:
            if is_main:
                discard(temporary)
                temporary.mkdir(parents=self._place is None)
            self.ranks.barrier()
            mine = _write_streams(temporary, snapshot, self.columns)
            if sharded:
                mine |= dict(
                    map(_flushed, write_shards(weights | snapshot.optimizer, temporary, self.ranks))
                )
            written = self.ranks.gathered(mine)
            if is_main:
                digests = {}
                for files in written:
                    for name, digest in files.items():
                        digests[name] = digest
                if not sharded:
                    digests |= _write_tensors(weights, temporary / WEIGHTS)
                    digests |= _write_tensors(snapshot.optimizer, temporary / OPTIMIZER)
                texts = {RECORD: _json(config), PROGRESS: _json(snapshot.progress)}
                for name, text in {**texts, **self.attachments}.items():
                    digests |= _write_text(text, temporary / name)
                write_digests(temporary, {name: [digest] for name, digest in digests.items()})
                flush(temporary)
                if folder.is_symlink() or (folder.exists() and any(folder.iterdir())):
                    set_aside(folder)  # not the checkpoint of this step
                temporary.rename(folder)
                flush(folder.parent)
            self._point(folder, best=config["best"])
        except BaseException:
            if is_main:
                discard(temporary)
            raise


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=1, allow_nan=False) + "\n"


def _is_of_step(folder: Path, step: int) -> bool:
    """True if a folder holds a checkpoint of this step.

    A link is none: what it leads to is not written to.
    """
    if folder.is_symlink():
        return False
    try:
        read_digests(folder)
        return read_json(folder / RECORD).get("step") == step
    except (OSError, ValueError, AttributeError):
        return False


def _digests_now(folder: Path) -> dict[str, set[str]]:
    digests = {}
    for path in folder.iterdir():
        if path.is_file():
            digests[path.name] = {sha256(path)}
    return digests


def _rewrite(folder: Path, config: dict[str, Any], progress: dict[str, Any]) -> None:
    """config.json first: a kill between the two then repeats the evaluation
    instead of losing it.
    """
    before = read_digests(folder) or _digests_now(folder)
    texts = {RECORD: _json(config), PROGRESS: _json(progress)}
    after = {}
    for name, text in texts.items():
        after[name] = {digest_of(text.encode())}
    write_digests(
        folder, {**before, **{name: {*before.get(name, ()), *after[name]} for name in after}}
    )
    for name, text in texts.items():
        write_whole(folder / name, text)
    write_digests(folder, {**before, **after})


def _write_streams(folder: Path, snapshot: Snapshot, columns: slice) -> dict[str, str]:
    if snapshot.memory is not None:
        remembered = snapshot.memory.named()
    else:
        remembered = {}
    tensors = {}
    for name, tensor in remembered.items():
        tensors[f"memory.{name}"] = tensor
    for kind, state in snapshot.rng.items():
        tensors[f"rng.{kind}"] = state
    return _write_tensors(tensors, folder / STREAMS.format(columns.start, columns.stop))


def _write_tensors(tensors: dict[str, Tensor], path: Path) -> dict[str, str]:
    """Write a file of tensors; its name and digest."""
    save_tensors(path, tensors)
    return dict([_flushed(path)])


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Any = None) -> None:
    """Write a file of safetensors with the permissions of any new file: the library makes files
    that only their owner may read.

    Args:
        metadata: text by name; None: there is none.
    """
    with errors_naming(path):
        path.touch()
        mode = path.stat().st_mode
        copies = {n: t.detach().to("cpu", copy=True).contiguous() for n, t in tensors.items()}
        save_file(copies, path, metadata=metadata)
        path.chmod(mode)


def _write_text(text: str, path: Path) -> dict[str, str]:
    """Write a text file; its name and digest."""
    with errors_naming(path):
        path.write_text(text, encoding="utf-8")
    return dict([_flushed(path)])


def _flushed(path: Path) -> tuple[str, str]:
    """Wait until a file is on the disk; its name and digest."""
    flush(path)
    return path.name, sha256(path)
