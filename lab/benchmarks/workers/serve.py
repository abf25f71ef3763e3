"""What every worker does: it builds its program in the shape it was given, and answers tasks with how long they took.

A task is a generator that does a unit of work between two yields: a segment read, a token written, a step trained. It
goes on where it stopped, so that a memory is never read twice.

    asked: a line `FIGURE TASK N`      answered: a line of JSON with the figure of N units
    figures: `seconds`, or `peak_bytes`, the most memory held meanwhile: to see that, what a process keeps for its next
    step is taken from it first, so that this step takes longer
"""

import itertools
import json
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from lab.benchmarks.shapes import Shape
from txl.runtime.resources import PeakMemory


def serve_models(
    about: str, tasks: dict[str, Callable[[Shape], Iterator[object]]], **facts: object
) -> None:
    """`serve` tasks of a model with the shape given as first argument."""
    shape = Shape.of_json(sys.argv[1])
    serve(
        about,
        {name: partial(task, shape) for name, task in tasks.items()},
        torch.device(shape.device),
        **facts,
    )


def serve(
    about: str,
    tasks: dict[str, Callable[[], Iterator[object]]],
    device: torch.device,
    **facts: object,
) -> None:
    """Answer tasks until the input ends, or one fails, which is said in one line of JSON.

    The first line says what this is. Bytes on a CPU are those above what the process held before it built anything.

    Args:
        facts: for the first line, besides.
    """
    warnings.simplefilter("ignore")
    _say(about=f"{about}, torch {torch.__version__}, {torch.get_num_threads()} threads", **facts)
    before = 0 if device.type == "cuda" else PeakMemory(device).bytes()
    running: dict[str, Iterator[object]] = {}
    for line in sys.stdin:
        figure, task, n = line.split()
        try:
            if task not in running:
                running[task] = tasks[task]()
            work = itertools.islice(running[task], int(n))
            if figure == "seconds":
                found: float | None = _seconds(work, device)
            else:
                found = _peak_bytes(work, device, before)
        except (RuntimeError, ValueError) as error:  # out of memory is a RuntimeError
            _say(error=f"{type(error).__name__}: {str(error).splitlines()[0]}")
            return
        _say(**{figure: found})


def _seconds(work: Iterator[object], device: torch.device) -> float:
    start = time.perf_counter()
    deque(work, maxlen=0)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _peak_bytes(work: Iterator[object], device: torch.device, before: int | None) -> int | None:
    peak = PeakMemory(device)
    deque(work, maxlen=0)
    held = peak.bytes()
    return None if None in (held, before) else held - before


def drawn(n_word: int, n_token: int) -> Tensor:
    """Ids of a text of one row, the same at each call, (1, T)."""
    return torch.randint(0, n_word, (1, n_token), generator=torch.Generator().manual_seed(1))


def word_shares(shape: Shape) -> Tensor:
    """How often each word of the vocabulary occurs, most frequent first, (V,).

    The word of rank i, from 1 on, as often as i^-1.2: with WikiText-103's cutoffs 95 % of all are on the shortlist.
    """
    count_V = torch.arange(1, shape.n_token + 1, dtype=torch.float64) ** -1.2
    return count_V / count_V.sum()


def segments(shape: Shape) -> Iterator[tuple[Tensor, Tensor]]:
    """(input, target), (B, T) each, without end: words drawn as often as those of a text, see `word_shares`."""
    generator = torch.Generator().manual_seed(1)
    n_word = shape.batch_size * (16 * shape.tgt_len + 1)
    word = torch.multinomial(word_shares(shape), n_word, replacement=True, generator=generator)
    word_BL = word.view(shape.batch_size, -1)
    for begin in itertools.cycle(range(0, 16 * shape.tgt_len, shape.tgt_len)):
        piece_BT = word_BL[:, begin : begin + shape.tgt_len + 1]
        yield piece_BT[:, :-1], piece_BT[:, 1:]


def autocast(shape: Shape) -> torch.autocast:
    """Matrix products in the shape's dtype, the weights in float32."""
    dtype = getattr(torch, shape.dtype)
    return torch.autocast(shape.device, dtype, enabled=dtype != torch.float32)


def update(model: torch.nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Backward pass, clipping and update, as the original's train.py does them."""
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    optimizer.zero_grad()


def _say(**values: object) -> None:
    print(json.dumps(values), flush=True)
