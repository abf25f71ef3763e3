"""The training loop."""

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor
from tqdm import tqdm

from txl.config import Context, TrainConfig
from txl.evaluate import Score
from txl.log import Scalars, eval_line, perplexity, say, train_line
from txl.memory import Memory
from txl.model import TransformerXL
from txl.optim import build_optimizer, learning_rate, set_learning_rate


class Save(Protocol):
    """Writes a checkpoint of the model as it is now and says where."""

    def __call__(self, *, step: int, valid_nats: float | None, best: bool) -> object: ...


class Interrupted(Exception):
    """Ctrl-C, after the run was saved."""


def train(
    model: TransformerXL,
    stream: Iterable[tuple[Tensor, Tensor, Tensor | None]],
    *,
    validate: Callable[[], Score],
    save: Save,
    config: TrainConfig,
    context: Context,
    scalars: Scalars,
) -> float:
    """Train for `config.max_step` updates; each epoch reads `stream` from the start with an empty memory.

    Args:
        stream: segments (input, target, ...), in order; can be iterated again and again.
        validate: scores the valid split with the model as it is.
        save: called after every evaluation, and on Ctrl-C.
    Returns:
        The lowest validation loss, in nats per token.
    Raises:
        Interrupted: on Ctrl-C, once the last whole update is saved.
    """
    device = next(model.parameters()).device
    optimizer = build_optimizer(model.parameters(), config)
    step, n_eval, best = 0, 0, float("inf")
    meter = _Meter(device)
    model.train()
    bar = tqdm(total=config.max_step, desc="training", unit="step", disable=None)
    try:
        for epoch, batch, (input_BT, target_BT, _), memory in _endless(stream):
            lr = learning_rate(step, config)
            set_learning_rate(optimizer, lr)
            with uninterrupted():
                nll_BT, memory.now = model.nll(input_BT.to(device), target_BT.to(device), memory.now, context)
                nll_BT.mean().backward()
                grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
                optimizer.step()
                optimizer.zero_grad()
                step += 1
            meter.add(nll_BT)
            bar.update()
            if step % config.log_interval == 0:
                nats, ms_per_batch, tok_per_s = meter.read()
                say(train_line(epoch=epoch, step=step, batch=batch, lr=lr, ms_per_batch=ms_per_batch, nats=nats))
                bar.set_postfix_str(f"loss {nats:.2f}, ppl {perplexity(nats):.1f}, {tok_per_s:.0f} tok/s")
                scalars.add(step, train__nll_nats=nats, train__lr=lr, train__grad_norm=float(grad_norm))
                scalars.add(step, speed__tok_per_s=tok_per_s)
            if step % config.eval_interval == 0 or step == config.max_step:
                n_eval += 1
                with meter.paused():
                    start = time.perf_counter()
                    nats = validate().nats_per_token
                    seconds = time.perf_counter() - start
                    say(eval_line(index=n_eval, step=step, seconds=seconds, nats=nats))
                    scalars.add(step, valid__nll_nats=nats, valid__ppl=perplexity(nats))
                    with uninterrupted():
                        save(step=step, valid_nats=nats, best=nats < best)
                    best = min(best, nats)
            if step == config.max_step:
                return best
    except KeyboardInterrupt:
        bar.close()
        where = save(step=step, valid_nats=None, best=False)
        raise Interrupted(f"interrupted after step {step}; saved in {where}") from None
    finally:
        bar.close()
    raise AssertionError("an endless stream has ended")


class _Carried:
    """The memory that goes from one segment to the next."""

    def __init__(self) -> None:
        self.now: Memory | None = None


def _endless(
    stream: Iterable[tuple[Tensor, Tensor, Tensor | None]],
) -> Iterator[tuple[int, int, tuple[Tensor, Tensor, Tensor | None], _Carried]]:
    """(epoch, batch of the epoch, segment, memory): the stream over and over, each time with an empty memory."""
    epoch = 0
    while True:
        epoch += 1
        memory = _Carried()
        for batch, segment in enumerate(stream, 1):
            yield epoch, batch, segment, memory


class _Meter:
    """Mean loss and speed since it was last read. Adds up on the device, so that only reading waits for it."""

    def __init__(self, device: torch.device) -> None:
        self._nats = torch.zeros((), dtype=torch.float64, device=device)
        self._reset()

    def _reset(self) -> None:
        self._nats.zero_()
        self._tokens = self._batches = 0
        self._start = time.perf_counter()

    def add(self, nll_BT: Tensor) -> None:
        self._nats += nll_BT.detach().double().sum()
        self._tokens += nll_BT.numel()
        self._batches += 1

    def read(self) -> tuple[float, float, float]:
        """Nats per token, milliseconds per batch, tokens per second."""
        nats = float(self._nats) / self._tokens
        seconds = time.perf_counter() - self._start
        result = nats, 1000 * seconds / self._batches, self._tokens / seconds
        self._reset()
        return result

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The clock stands still meanwhile."""
        start = time.perf_counter()
        yield
        self._start += time.perf_counter() - start


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put Ctrl-C off to the end of the block, so that no update and no file is left half done."""
    pending = []
    try:
        before = signal.signal(signal.SIGINT, lambda *_: pending.append(True))
    except ValueError:  # not the main thread: Ctrl-C does not arrive here anyway
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pending:
        raise KeyboardInterrupt
