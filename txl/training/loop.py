"""The training loop."""

import dataclasses
import itertools
import math
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from tqdm import tqdm

from txl.checkpoint import CheckpointWriter
from txl.config import Context
from txl.evaluation.reading import ScoredRows
from txl.evaluation.score import Score, evaluate
from txl.model.transformer import TransformerXL
from txl.runtime.distributed import Ranks, Vote
from txl.runtime.log import eval_line, perplexity, print_line, train_line
from txl.runtime.signals import GO_ON, STATUS, WORDS, StopNow, StopRequest, until_stopped
from txl.training.budget import FIRST_LINE, LINE, SAVE, Pace, read_ballot
from txl.training.finite import require_finite_weights
from txl.training.meter import Meter
from txl.training.metrics import Metrics
from txl.training.nats import Batch
from txl.training.sharding import reshard
from txl.training.step import TrainState


class TrainingStream(Protocol):
    """Segments of this process's streams, in order."""

    def epoch(self, epoch: int, *, first: int = 0) -> Iterator[Batch]:
        """The segments of an epoch, counted from 1, from segment `first` on."""
        ...


@dataclass(frozen=True)
class Validation:
    """How the valid split is scored.

    Attributes:
        streams: this process's share of the split; each is read with an empty memory at first.
        counts: words, characters, ... of its targets; see `Score`.
        max_segments: read no more than this many of `streams`; -1: all.
    """

    streams: Sequence[ScoredRows]
    context: Context
    counts: Mapping[str, int]
    max_segments: int = -1

    def score(self, model: TransformerXL, ranks: Ranks, request: StopRequest) -> Score:
        """The score over all ranks. Raises `StopNow` if a rank is asked to stop meanwhile."""
        n_segment = sum(map(len, self.streams))
        if self.max_segments >= 0:
            limit = self.max_segments
        else:
            limit = n_segment
        numbered = ((i, segment) for i, stream in enumerate(self.streams) for segment in stream)
        blanks = self._blanks(model, min(limit, n_segment), ranks)
        segments: Iterator[tuple[int, tuple[Tensor, Tensor, Tensor | None]]] = itertools.chain(
            itertools.islice(numbered, limit), blanks
        )
        read = until_stopped(segments, request, ranks)
        by_stream = itertools.groupby(read, key=operator.itemgetter(0))
        score = Score.total(
            evaluate(model, (s for _, s in group), self.context) for _, group in by_stream
        )
        # counts of a part would be beside the nats of another
        is_whole = all(ranks.gathered(limit >= n_segment))
        return (dataclasses.replace(score, **self.counts) if is_whole else score).over(ranks)

    def _blanks(
        self, model: TransformerXL, n_own: int, ranks: Ranks
    ) -> Iterator[tuple[int, tuple[Tensor, Tensor, Tensor]]]:
        """Segments of which nothing counts: where the model is sharded all ranks must read equally
        many.
        """
        if not model.is_sharded:
            return iter(())
        nothing = torch.zeros(1, 1, dtype=torch.int64)
        n_blank = max(ranks.gathered(n_own)) - n_own
        return itertools.repeat((-1, (nothing, nothing, nothing.bool())), n_blank)


@dataclass(frozen=True)
class Outcome:
    """How a training ended.

    Attributes:
        best_nats: the lowest validation loss, in nats per token.
        tok_per_s: tokens trained on per second, over all processes, without evaluations and
            checkpoints.
        status: the exit status; 0 unless a signal stopped the training.
        reason: why it stopped early, and where it is saved; None: it did not.
    """

    best_nats: float
    tok_per_s: float
    status: int = 0
    reason: str | None = None


def train(
    state: TrainState,
    stream: TrainingStream,
    validation: Validation,
    checkpoints: CheckpointWriter | None,
    metrics: Metrics,
    sample: Callable[[], str] | None = None,
    *,
    before_s: float = 0.0,
) -> Outcome:
    """Train from where `state` is to `max_step` updates, or until its time is used; each epoch
    begins with an empty memory.

    Args:
        checkpoints: written before every evaluation and after it, every save_interval (with
            --minutes if it is given), and on a request to stop.
        sample: generates a text with the current model, for TensorBoard, after each evaluation.
        before_s: seconds since the start of the program, which count for --max_hours.
    Raises:
        NonFiniteError: see `TrainState.step`; also if a weight is not finite when it would be
            saved.
    """
    config, progress, ranks = state.config, state.progress, state.ranks
    meter, vote = Meter(state.model, state.context, ranks, state.dtype), Vote(ranks)
    pace = Pace(is_main=ranks.is_main)
    by_clock = state.budget is not None
    asked, saved_in = 0, None
    first_line = progress.step + FIRST_LINE
    bar = _bar(state)
    state.model.train()
    finished = nullcontext() if checkpoints is None else checkpoints.finished()
    with StopRequest(config.max_hours, before_s=before_s) as request, bar, finished:
        if progress.owes_evaluation:  # the run was stopped during an evaluation
            with meter.paused():
                asked = _evaluate(state, validation, metrics, request, sample)
                saved_in = _save(state, checkpoints)

        for batch in () if asked else _remaining(stream, state):
            n_skipped = progress.n_skipped
            nll_BT = state.step(*batch)
            meter.add(nll_BT, state.memory_loss, was_skipped=progress.n_skipped > n_skipped)
            bar.update()

            evaluate_now = _evaluation_is_due(state)
            asked, due = read_ballot(vote.agree(pace.ballot(request.noted)))
            is_last = state.is_over
            if progress.step % config.log_interval == 0 or is_last or (by_clock and evaluate_now):
                state.check()
                _report(state, meter.read(), bar, metrics)
                pace.note_line()
            elif progress.step == first_line or due & LINE:
                state.check()
                _show(state, meter.so_far(), bar)
                pace.note_line()

            asked = vote.now(request.noted) or asked
            if evaluate_now or asked or _save_is_due(state) or due & SAVE:
                state.check()
                with meter.paused():
                    progress.owes_evaluation = evaluate_now
                    # first, because an evaluation may be killed
                    saved_in = _save(state, checkpoints)
                    if evaluate_now and not asked:
                        asked = _evaluate(state, validation, metrics, request, sample)
                        if not progress.owes_evaluation:
                            saved_in = _save(state, checkpoints)
                        pace.note_line()
                pace.note_save()
                asked = vote.now(request.noted) or asked
            if asked:
                break
        vote.close()
    if asked:
        reason = f"{WORDS[asked]} after step {progress.step}; saved in {saved_in}; {GO_ON}"
        return Outcome(progress.best_nats, meter.tok_per_s, STATUS[asked], reason)
    return Outcome(progress.best_nats, meter.tok_per_s)


def _bar(state: TrainState) -> tqdm:
    """A progress bar over updates, if there is a terminal and this process is the one that shows
    it.
    """
    if state.budget is not None:
        n_update = None
    else:
        n_update = state.config.max_step
    disable = None if state.ranks.is_main else True  # None: a bar if there is a terminal
    return tqdm(
        total=n_update, initial=state.progress.step, desc="training", unit="step", disable=disable
    )


def _evaluation_is_due(state: TrainState) -> bool:
    """True after every eval_interval updates, with --minutes at every tenth of the time, and at the
    end.
    """
    if state.is_over:
        return True
    if state.budget is not None:
        return state.budget.evaluation_is_due
    return state.progress.step % state.config.eval_interval == 0


def _save_is_due(state: TrainState) -> bool:
    """True after every save_interval updates; where it is not given, after every eval_interval, but
    not with --minutes.
    """
    interval = state.config.save_interval
    if interval is None and state.budget is None:
        interval = state.config.eval_interval
    return interval is not None and state.progress.step % interval == 0


def _remaining(stream: TrainingStream, state: TrainState) -> Iterator[Batch]:
    """The segments up to the end, epoch after epoch, from where the training is."""
    while True:
        for batch in stream.epoch(state.progress.epoch, first=state.progress.batch):
            if state.is_over:
                return
            yield batch
        state.next_epoch()


def _report(state: TrainState, measured: dict[str, float], bar: tqdm, metrics: Metrics) -> None:
    """Print and record the loss and speed since the last report."""
    if not state.ranks.is_main:
        return
    _show(state, measured, bar)
    values = measured | {"train/lr": state.lr, "train/grad_norm": float(state.grad_norm)}
    metrics.add("train", state.progress.step, values, **state.progress.position)


def _show(state: TrainState, measured: dict[str, float], bar: tqdm) -> None:
    """Print the loss and speed since the last report."""
    if not state.ranks.is_main:
        return
    progress = state.progress
    nats = measured["train/nll_nats"]
    ms_per_step = measured["speed/ms_per_step"]
    line = train_line(
        epoch=progress.epoch,
        step=progress.step,
        batch=progress.batch,
        lr=state.lr,
        ms_per_batch=ms_per_step,
        nats=nats,
    )
    if bar.disable:
        left_s = ms_per_step / 1000 * (state.config.max_step - progress.step)
        if state.budget is not None:
            left_s = min(left_s, state.budget.left_s)
        minutes, seconds = divmod(round(left_s), 60)
        line += f" | eta {minutes // 60}:{minutes % 60:02}:{seconds:02}"
    print_line(line)
    bar.set_postfix_str(
        f"loss {nats:.2f}, ppl {perplexity(nats):.1f}, {measured['speed/tok_per_s']:.0f} tok/s"
    )


def _evaluate(
    state: TrainState,
    validation: Validation,
    metrics: Metrics,
    request: StopRequest,
    sample: Callable[[], str] | None,
) -> int:
    """Score the valid split with the averaged weights, print and record it. Returns the request
    that interrupted it, 0 if none did.
    """
    progress = state.progress
    start = time.perf_counter()
    with state.average.in_use():
        try:
            # only here: the exchange of weights must not be interrupted
            request.at_once = state.ranks.world == 1
            score = validation.score(state.model, state.ranks, request)
            request.at_once = False
        except StopNow as stop:
            return stop.args[0]
        finally:
            state.model.train()
            reshard(state.model)
        nats = score.nats_per_token
        seconds = time.perf_counter() - start
        if (
            sample is not None
            and (state.ranks.is_main or state.model.is_sharded)
            and math.isfinite(nats)
        ):
            metrics.add_text("sample", progress.step, sample())
            state.model.train()
            reshard(state.model)
    progress.owes_evaluation = False
    progress.n_eval += 1
    state.note_validation(nats, score.tokens)
    state.valid_nats = nats
    if state.ranks.is_main:
        print_line(eval_line(index=progress.n_eval, step=progress.step, seconds=seconds, nats=nats))
        values = {"valid/nll_nats": nats, "valid/ppl": perplexity(nats)}
        # <unk> has the wrong length
        if score.bits_per_character and score.unknown <= 0.01 * score.tokens:
            values["valid/bits_per_character"] = score.bits_per_character
        metrics.add("valid", progress.step, values, **progress.position, scored_tokens=score.tokens)
    if state.budget is not None:
        state.budget.note_evaluation(time.perf_counter() - start)
    return 0


def _save(state: TrainState, checkpoints: CheckpointWriter | None) -> object:
    """Write a checkpoint, as the best one if it has the lowest validation loss; returns where."""
    require_finite_weights(state.model, state.ranks, state.progress.step)
    nats = state.valid_nats
    state.valid_nats = None
    if checkpoints is None:
        return None
    best = nats is not None and nats == state.progress.best_nats
    snapshot = state.snapshot()
    with state.average.in_use():
        return checkpoints.save(
            state.model, snapshot, step=state.progress.step, best=best, valid_nats=nats
        )
