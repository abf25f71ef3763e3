"""The training loop."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import Tensor
from tqdm import tqdm

from txl.checkpoint import Snapshot
from txl.evaluation.score import Score
from txl.runtime.distributed import Ranks, Vote
from txl.runtime.log import eval_line, perplexity, print_line, train_line
from txl.runtime.signals import STATUS, WORDS, StopNow, StopRequest, until_asked
from txl.training.finite import require_finite_weights
from txl.training.meter import Measurement, Meter
from txl.training.metrics import Metrics
from txl.training.step import TrainState

T = TypeVar("T")
Batch = tuple[Tensor, Tensor, Tensor | None]
"""(input, target, ignored), as the text library yields them."""


class TrainingStream(Protocol):
    """Segments of this process's streams, in order; any of any epoch can be asked for."""

    def epoch(self, epoch: int, *, first: int = 0) -> Iterator[Batch]:
        """The segments of an epoch, counted from 1, from segment `first` on."""
        ...


Watched = Callable[[Iterable[T]], Iterator[T]]
"""Yields the same segments, unless somebody asks for the end meanwhile."""


class Save(Protocol):
    """Writes a checkpoint of the model as it is now and says where. All ranks call it together. After the same step
    once more, it adds what an evaluation has found."""

    def __call__(self, snapshot: Snapshot, *, step: int, valid_nats: float | None, best: bool) -> object: ...


@dataclass(frozen=True)
class Outcome:
    """How a training ended.

    Attributes:
        best_nats: the lowest validation loss, in nats per token.
        tok_per_s: tokens trained on per second, over all processes; evaluations and checkpoints do not count.
        status: the exit status that whoever asked for the end expects; 0 where it ended by itself.
        reason: why it ended before its time, and where it is saved; None: it did not.
    """

    best_nats: float
    tok_per_s: float
    status: int = 0
    reason: str | None = None


def train(
    state: TrainState,
    stream: TrainingStream,
    *,
    validate: Callable[[Watched], Score],
    save: Save,
    metrics: Metrics,
    sample: Callable[[], str] | None = None,
) -> Outcome:
    """Train from where `state` is to `max_step` updates; each epoch begins with an empty memory.

    Args:
        validate: scores the valid split with the model as it is, the same on all ranks; the segments it reads, it
            reads through its argument.
        save: called before every evaluation and after it, every save_interval, and when someone asks for the end.
        sample: generates a text with the model as it is, for people to look at after each evaluation.
    Raises:
        NonFiniteError: see `TrainState.step`; also if a weight is not finite where it would be saved.
    """
    config, progress, ranks = state.config, state.progress, state.ranks
    meter, vote = Meter(state.model, state.context, ranks, state.dtype), Vote(ranks)
    save_interval = config.save_interval or config.eval_interval
    asked, where = 0, None
    state.model.train()
    bar = tqdm(total=config.max_step, initial=progress.step, desc="training", unit="step", disable=_no_bar(ranks))
    with StopRequest(config.max_hours) as request, bar:
        if progress.owes_evaluation:
            asked = _evaluate(state, validate, metrics, request, sample)
            where = _save(state, save)
        for input_BT, target_BT, *_ in () if asked else _remaining(stream, state):
            meter.add(state.step(input_BT, target_BT))
            bar.update()
            if progress.step % config.log_interval == 0:
                state.look()
                _report(state, meter.read(), bar, metrics)
            asked = vote.agree(request.noted)
            is_due = progress.step % config.eval_interval == 0 or progress.step >= config.max_step
            if is_due or asked or progress.step % save_interval == 0:
                state.look()
                with meter.paused():
                    progress.owes_evaluation = is_due
                    where = _save(state, save)  # first: an evaluation may be killed
                    if is_due and not asked:
                        asked = _evaluate(state, validate, metrics, request, sample)
                        if not progress.owes_evaluation:
                            where = _save(state, save)
                asked = vote.now(request.noted) or asked
            if asked:
                break
        vote.close()
    if asked:
        reason = f"{WORDS[asked]} after step {progress.step}; saved in {where}; go on with --resume"
        return Outcome(progress.best_nats, meter.tok_per_s, STATUS[asked], reason)
    return Outcome(progress.best_nats, meter.tok_per_s)


def _report(state: TrainState, reading: Measurement, bar: tqdm, metrics: Metrics) -> None:
    if not state.ranks.is_main:
        return
    progress = state.progress
    print_line(
        train_line(
            epoch=progress.epoch,
            step=progress.step,
            batch=progress.batch,
            lr=state.lr,
            ms_per_batch=reading.ms_per_step,
            nats=reading.nats,
        )
        + (
            f" | eta {_clock(reading.ms_per_step / 1000 * (state.config.max_step - progress.step))}"
            if bar.disable
            else ""
        )
    )
    bar.set_postfix_str(f"loss {reading.nats:.2f}, ppl {perplexity(reading.nats):.1f}, {reading.tok_per_s:.0f} tok/s")
    values = {
        "train/nll_nats": reading.nats,
        "train/ppl": perplexity(reading.nats),
        "train/lr": state.lr,
        "train/grad_norm": float(state.grad_norm),
        "speed/tok_per_s": reading.tok_per_s,
        "speed/ms_per_step": reading.ms_per_step,
        "speed/mfu_share": reading.mfu_share,
        "mem/peak_gib": reading.peak_gib,
    }
    metrics.add("train", progress.step, values, **progress.place)


def _clock(seconds: float) -> str:
    """As hours:minutes:seconds."""
    minutes = round(seconds) // 60
    return f"{minutes // 60}:{minutes % 60:02}:{round(seconds) % 60:02}"


def _no_bar(ranks: Ranks) -> bool | None:
    return None if ranks.is_main else True  # None: where there is a terminal


def _remaining(stream: TrainingStream, state: TrainState) -> Iterator[Batch]:
    """The stream from where the training is, over and over, each time with an empty memory, up to max_step."""
    while True:
        for batch in stream.epoch(state.progress.epoch, first=state.progress.batch):
            if state.progress.step >= state.config.max_step:
                return
            yield batch
        state.next_epoch()


def _evaluate(
    state: TrainState,
    validate: Callable[[Watched], Score],
    metrics: Metrics,
    request: StopRequest,
    sample: Callable[[], str] | None,
) -> int:
    """Note the loss of the valid split, unless asked to stop meanwhile; what was asked, 0: nothing."""
    progress = state.progress
    start = time.perf_counter()
    with state.average.in_use():
        try:
            request.at_once = state.ranks.world == 1  # only here: an exchange of weights must not be cut short
            score = validate(lambda segments: until_asked(segments, request, state.ranks))
            request.at_once = False
        except StopNow as stop:
            return stop.args[0]
        finally:
            state.model.train()
        nats, seconds = score.nats_per_token, time.perf_counter() - start
        if sample is not None and state.ranks.is_main and math.isfinite(nats):
            metrics.add_text("sample", progress.step, sample())
            state.model.train()
    progress.owes_evaluation = False
    progress.n_eval += 1
    state.valid_nats = nats
    if nats < progress.best_nats:
        progress.best_nats = nats
    state.plateau.see(nats)
    if state.ranks.is_main:
        print_line(eval_line(index=progress.n_eval, step=progress.step, seconds=seconds, nats=nats))
        values = {"valid/nll_nats": nats, "valid/ppl": perplexity(nats)}
        if score.characters and score.unknown <= 0.01 * score.tokens:  # else they would count as the word <unk>
            values["valid/bits_per_character"] = score.bits_per_character
        metrics.add("valid", progress.step, values, **progress.place)
    return 0


def _save(state: TrainState, save: Save) -> object:
    """A checkpoint, the best one if it is that of the lowest validation loss."""
    require_finite_weights(state.model, state.ranks, state.progress.step)
    nats, state.valid_nats = state.valid_nats, None
    best = nats is not None and nats == state.progress.best_nats
    snapshot = state.snapshot()
    with state.average.in_use():
        return save(snapshot, step=state.progress.step, valid_nats=nats, best=best)
