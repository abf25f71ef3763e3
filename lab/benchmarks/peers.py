"""Programs timed against each other in interleaved runs, each in its own process and environment."""

import argparse
import dataclasses
import functools
import importlib.metadata
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lab.benchmarks.shapes import Shape
from txl.files import written_whole

ROOT = Path(__file__).parents[2]
WARM_UP = 5
"""Units that do not count: a large training takes twice as long for each of its first steps, until the process has all
the memory that it ever needs."""


class PeerError(RuntimeError):
    """A program failed."""


class Peer:
    """A worker process that is asked for work and says how long it took.

    Args:
        name: of a module in lab.benchmarks.workers.
        arguments: of the worker.
        python: the interpreter of its environment.
        dtype: in which it computes, if there are several.
    """

    def __init__(
        self, name: str, *arguments: str, python: str = sys.executable, dtype: str = ""
    ) -> None:
        self.name, self.dtype = name, dtype
        command = [python, "-m", f"lab.benchmarks.workers.{name}", *arguments]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        self.seconds: list[float] = []
        self.peak_bytes: int | None = None
        self.facts: dict[str, Any] = {}
        self.error: str | None = None
        try:
            # before another one is started, for it may measure its machine
            self.facts = self._answer()
        except PeerError as error:
            self.error = str(error)

    def ask(self, figure: str, task: str, n: int) -> Any:
        """Have n units of a task done now: the "seconds" that it took, or the "peak_bytes" held meanwhile.

        Raises:
            PeerError: with the worker's own message, if it could not.
        """
        assert self._process.stdin is not None
        print(figure, task, n, file=self._process.stdin, flush=True)
        return self._answer()[figure]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer = (
            json.loads(line) if line else {"error": f"ended with status {self._process.wait()}"}
        )
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer

    def close(self) -> None:
        """End its process."""
        self._process.kill()
        self._process.communicate()


@dataclass(frozen=True)
class Ratio:
    """Time relative to ours, pair by pair: above 1, ours is faster."""

    median: float
    smallest: float
    largest: float


def ratio(ours: list[float], theirs: list[float]) -> Ratio:
    """The ratio of interleaved measurements."""
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def positive(text: str) -> int:
    """The value of a flag that counts something.

    Raises:
        argparse.ArgumentTypeError: if it is no number from 1 on.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number, at least 1")
    return int(text)


def add_peer_flags(parser: argparse.ArgumentParser) -> None:
    """Flags for the other programs and the number of rounds."""
    parser.add_argument(
        "--peer", metavar="PYTHON", help="of an environment with transformers 4.35.2"
    )
    parser.add_argument(
        "--x-transformers", metavar="PYTHON", help="of an environment with x-transformers"
    )
    parser.add_argument(
        "--original", metavar="FOLDER", help="a checkout of kimiyoung/transformer-xl"
    )
    parser.add_argument(
        "--also", choices=("bfloat16", "float16"), help="each program once more, in this dtype"
    )
    parser.add_argument(
        "--pairs", type=positive, default=7, help="times that each program is asked [7]"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")


def programs(args: argparse.Namespace, shape: Shape) -> list[Peer]:
    """Ours, and the programs chosen by the flags of `add_peer_flags`, in each dtype."""
    if args.x_transformers and shape.cutoffs:
        print("x_transformers left out: it has no adaptive softmax")
    peers = []
    for dtype in filter(None, (args.dtype, args.also)):
        model = dataclasses.replace(shape, dtype=dtype).to_json()
        peers.append(Peer("txl", model, dtype=dtype))
        if args.peer:
            peers.append(Peer("huggingface", model, python=args.peer, dtype=dtype))
        if args.original:
            peers.append(Peer("original", model, args.original, dtype=dtype))
        if args.x_transformers and not shape.cutoffs:
            peers.append(Peer("x_transformers", model, python=args.x_transformers, dtype=dtype))
    return peers


def compare(peers: list[Peer], task: str, n: int, *, pairs: int) -> None:
    """Ask all in turn, each round beginning with another one, after a round that does not count; then for their memory.

    In the first round there are `WARM_UP` units at least.
    """
    for i in range(pairs + 1):
        turn = i % len(peers)
        for peer in peers[turn:] + peers[:turn]:
            seconds = _figure(peer, "seconds", task, n if i else max(n, WARM_UP))
            if i and seconds is not None:
                peer.seconds.append(seconds)
    for peer in peers:
        peer.peak_bytes = _figure(peer, "peak_bytes", task, n)


def _figure(peer: Peer, name: str, task: str, n: int) -> Any:
    """What a program answers; None from one that has failed, now or before."""
    if peer.error is None:
        try:
            return peer.ask(name, task, n)
        except PeerError as error:
            peer.error = str(error)
    return None


def rows(peers: list[Peer], label: str, task: str, n_token: int) -> list[dict[str, Any]]:
    """Results per program and dtype, printed one by one: each beside the first program, which is ours, in the same
    dtype, and where there are several dtypes, the best of each beside our best."""
    found = []
    for peer in peers:
        row = {
            "shape": label,
            "task": task,
            "program": peer.name,
            "dtype": peer.dtype,
            "error": peer.error,
        }
        row |= peer.facts
        text = f"{label:24} {task:8} {peer.name:14} {peer.dtype:8} "
        if peer.error is not None:
            print(f"{text} failed: {peer.error}", flush=True)
        else:
            speed = n_token / statistics.median(peer.seconds)
            row |= {"seconds": peer.seconds, "tok_per_s": speed, "peak_bytes": peer.peak_bytes}
            peak = "       ?" if peer.peak_bytes is None else f"{peer.peak_bytes / 2**20:8.0f}"
            text += f"{speed:11.1f} tok/s {peak} MiB"
            if task == "train" and "peak_flops" in peer.facts:
                row["mfu_share"] = speed * peer.facts["flops_per_token"] / peer.facts["peak_flops"]
                text += f"  MFU {row['mfu_share']:.2f}"
            ours = next(p for p in peers if p.dtype == peer.dtype)
            if peer is not ours and ours.error is None:
                text += _beside(row, "times_as_long", ours, peer)
            if (
                len({p.dtype for p in peers}) > 1
                and peer.name != peers[0].name
                and peer is _best(peers, peer.name)
            ):
                text += _beside(row, "best_times_as_long", _best(peers, peers[0].name), peer)
            print(text, flush=True)
        found.append(row)
    return found


def _best(peers: list[Peer], name: str) -> Peer | None:
    """A program in the dtype in which it is fastest; None if it works in none."""
    working = [peer for peer in peers if peer.name == name and peer.error is None]
    return min(working, key=lambda peer: statistics.median(peer.seconds), default=None)


def _beside(row: dict[str, Any], field: str, ours: Peer | None, theirs: Peer) -> str:
    """The ratio of two programs, put into the row, in words."""
    if ours is None:
        return ""
    times = ratio(ours.seconds, theirs.seconds)
    row[field] = vars(times)
    what = "best of each" if field.startswith("best") else "ours"
    return (
        f"  {what} {times.median:.2f} times as fast ({times.smallest:.2f} to {times.largest:.2f})"
    )


def measured(
    args: argparse.Namespace, shapes: dict[str, Shape], task: str, n: int
) -> Iterator[dict[str, Any]]:
    """A task in every shape, n units at a time."""
    for label, shape in shapes.items():
        peers = programs(args, shape)
        try:
            compare(peers, task, n, pairs=args.pairs)
        finally:
            for peer in peers:
                peer.close()
        n_token = 1 if task == "generate" else shape.tgt_len * shape.batch_size
        yield from rows(peers, label, task, n * n_token)


def machine() -> dict[str, Any]:
    """The machine, versions and command of the measurement."""
    cpu = next((line for line in _cpu_info() if line.startswith("model name")), platform.machine())
    return {
        "cpu": cpu.partition(":")[2].strip() or cpu,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        **_gpu(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "command": shlex.join(sys.orig_argv[1:]),
    }


def say_machine() -> None:
    """Print `machine` in one line."""
    print("; ".join(f"{name} {value}" for name, value in machine().items()), flush=True)


def write(path: Path | None, results: dict[str, Any]) -> None:
    """Write results as JSON, with the machine, if a file is given."""
    if path is not None:
        with written_whole(path) as temporary:
            temporary.write_text(json.dumps({"machine": machine()} | results, indent=1) + "\n")


def write_as_found(
    path: Path | None, rows: Iterable[dict[str, Any]], **about: Any
) -> list[dict[str, Any]]:
    """All rows, written after each one, so that an interrupted run keeps its results."""
    found: list[dict[str, Any]] = []
    for row in rows:
        found.append(row)
        write(path, about | {"rows": found})
    return found


@functools.cache
def _gpu() -> dict[str, Any]:
    """The GPU's name, CUDA and driver versions, if there is one."""
    if not torch.cuda.is_available():
        return {"gpu": None}
    return {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda, "driver": _driver()}


def _driver() -> str | None:
    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(ask, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):  # a container may have the driver and not this
        return None
    return answer.stdout.partition("\n")[0].strip()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_info() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.is_file() else []
