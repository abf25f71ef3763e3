"""Programs to be timed against each other, each in a process and an environment of its own, asked in turn."""

import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


class Peer:
    """A worker process that answers each line with the seconds a piece of work took.

    Args:
        python: the interpreter of its environment.
        script: of this folder; it reads words from stdin and answers each with a number.
        arguments: of the script.
    """

    def __init__(self, python: str, script: str, *arguments: str) -> None:
        command = [python, str(ROOT / "benchmarks" / script), *arguments]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
        )
        self.about = self._answer()

    def seconds(self, task: str) -> float:
        """How long a task takes, done once now."""
        assert self._process.stdin is not None
        print(task, file=self._process.stdin, flush=True)
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            sys.exit(f"{self._process.args[1]} has ended with status {self._process.wait()}; see its message above")
        return line

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def compare(ours: Peer, theirs: Peer, task: str, *, pairs: int) -> tuple[list[float], list[float]]:
    """Seconds of both for a task, asked in turn after one round that does not count."""
    a, b = [], []
    for i in range(pairs + 1):
        one, two = ours.seconds(task), theirs.seconds(task)
        if i:
            a.append(one)
            b.append(two)
    return a, b


def summary(label: str, n_token: int, ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Tokens per second of both, and how many times faster ours is, pair by pair."""
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    speeds = [n_token / statistics.median(seconds) for seconds in (ours, theirs)]
    return (
        f"{label}: ours {speeds[0]:.1f} tok/s, theirs {speeds[1]:.1f} tok/s, "
        f"ratio median {statistics.median(ratios):.2f} (min {min(ratios):.2f}, max {max(ratios):.2f}) "
        f"over {len(ratios)} pairs"
    )
