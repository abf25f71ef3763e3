"""The training state, and one training step."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, get_type_hints

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from txl.attention_rules import redraw
from txl.checkpoint import OPTIMIZER, PROGRESS, Snapshot, damaged
from txl.config import Context, require
from txl.model.autocast import autocast, dtype_on
from txl.model.streams import Memory, chunks, joined, swapped_out
from txl.model.transformer import TransformerXL
from txl.ops.lookup import Room
from txl.runtime.distributed import Ranks, whole
from txl.runtime.log import print_line
from txl.runtime.recording import Record
from txl.runtime.records import finite, require_fields
from txl.stacks.reversible import compute_in_chunks
from txl.training.budget import Budget
from txl.training.config import TrainConfig
from txl.training.finite import BadStep, GradientWatch, NonFiniteError, without_bad_rows
from txl.training.learning import learning_parameters
from txl.training.nats import Batch, Nats
from txl.training.optim import Optimizers
from txl.training.optimizers import WeightAverage
from txl.training.repeated import RepeatedUpdate, Update
from txl.training.schedules import Plateau, schedule_of
from txl.training.sharding import reshard
from txl.training.update_rules import rule_of


@dataclass
class Progress:
    """Counters of a training.

    Attributes:
        batch: segments read in this epoch.
        best_nats: the best validation loss.
        n_validated: tokens that the last validation has scored; 0: none, or nobody knows.
        n_skipped: updates skipped because the gradient was not finite; n_skipped_in_a_row: those
            since the last other.
        owes_evaluation: the evaluation after this step has not been completed.
        n_token: tokens read, over all streams and epochs.
        seconds: of training, with --minutes.
    """

    step: int = 0
    epoch: int = 1
    batch: int = 0
    n_eval: int = 0
    best_nats: float = math.inf
    n_validated: int = 0
    n_skipped: int = 0
    owes_evaluation: bool = False
    n_token: int = 0
    n_skipped_in_a_row: int = 0
    seconds: float = 0.0

    @property
    def position(self) -> dict[str, int]:
        """Epoch and tokens, for metrics.jsonl."""
        return {"epoch": self.epoch, "tokens": self.n_token}


class TrainState:
    """Everything that changes from step to step, and the step itself.

    A process computes its share of the streams in `batch_chunk` parts, each with its own memory.
    Gradients are averaged over processes once, after the last part.
    """

    def __init__(
        self, model: TransformerXL, config: TrainConfig, context: Context, ranks: Ranks
    ) -> None:
        self.model = model
        self.config = config
        self.context = context
        self.ranks = ranks
        torch.backends.cuda.matmul.allow_tf32 = config.tf32
        for layer in model.layers:
            layer.recompute = config.recompute
            compute_in_chunks(layer.ff, config.ff_chunk)
        if config.compile:
            for layer in model.layers:
                for part in (layer.attn, layer.ff) if model.config.reversible else (layer,):
                    part.compile()
        self.dtype = autocast_dtype(config, ranks.device)
        self.nats: Nats | DistributedDataParallel = Nats(
            model, config.label_smoothing, config.n_part
        )
        # every parameter that learns gets a gradient in every step
        if ranks.world > 1 and not model.is_sharded:
            self.nats = DistributedDataParallel(self.nats, gradient_as_bucket_view=True)
            self._fix_gradient_buckets()
        self.optimizers = Optimizers(
            learning_parameters(model).items(), config, rule_of(config).matrices(model)
        )
        self.average = WeightAverage(model, config.ema)
        self.schedule = schedule_of(config)
        self.plateau = Plateau(config)
        self.progress = Progress()
        self.budget: Budget | None = None
        """The time of the training, with --minutes."""
        self.memories: list[Memory | None] = [None] * config.batch_chunk
        if self.dtype == torch.float16:
            self.scaler = torch.amp.GradScaler(ranks.device.type)
        else:
            self.scaler = None
        self.memory_loss: Tensor | None = None
        """What the memory adds to the loss of the last step, detached."""
        self.lr = 0.0
        self.valid_nats: float | None = None
        """Of an evaluation since the last checkpoint."""
        self.grad_norm = torch.zeros((), device=ranks.device)
        self.watch = GradientWatch(ranks.device)
        # to read its note waits for the device: a GPU goes on, and `check` reads it later
        self.checks_later = (
            ranks.device.type != "cpu"
            and config.on_nonfinite == "stop"
            and self.scaler is None
            and self.optimizers.can_skip_on_device
        )
        self.update: Callable[[Batch, list[Memory | None]], Update] = self._update

    def why_not_repeatable(self) -> str:
        """Why an update cannot be recorded, on whatever device; empty: it can be."""
        if not (self.optimizers.reads_device and self.optimizers.can_skip_on_device):
            return (
                f"--optim {self.config.optim} does not say that its step finds rate and counts on"
                " the device, and that it can be left out there (`reads_device`,"
                " `skips_on_device`), as adam, adamw, sgd and muon do"
            )
        if not all(layer.memory.traits.keeps_places for layer in self.model.layers):
            return (
                f"how much --memory {self.model.config.memory} keeps depends on what it reads,"
                " which no graph can hold"
            )
        return ""

    def repeat_update(self, record: Record, shares: Sequence[float]) -> None:
        """Let updates be recorded once and repeated. Raises `UsageError` if they cannot be.

        Args:
            shares: of the clusters of the vocabulary in the text.
        """
        why = self.why_not_repeatable()
        require(not why, f"--cuda_graph: {why}; give --no_cuda_graph")
        self.checks_later = True  # on a CPU too, where tests repeat updates
        self.optimizers.move_rate_to(self.ranks.device)
        config = self.config
        shape = self.model.config
        n_row = config.batch_size // self.ranks.world // config.batch_chunk
        n_id = n_row * -(-(self.context.tgt_len + self.context.ext_len) // config.n_part)

        def parts(ids: Tensor) -> list[Tensor]:
            found: list[Tensor] = []
            for chunk in ids.chunk(config.batch_chunk):
                found += chunk.chunk(config.n_part, dim=1)
            return found

        self.update = RepeatedUpdate(
            self._update,
            self.ranks.device,
            shape.n_token,
            Room.of(shape.cluster_sizes, shares, n_id),
            parts,
            record,
            must_record=config.cuda_graph != "auto",
        )

    def step(self, input_BT: Tensor, target_BT: Tensor, since_BT: Tensor | None = None) -> Tensor:
        """Read a segment and update the weights.

        Args:
            input_BT, target_BT: ids on the CPU, where they are grouped by cluster without
            synchronising the device.
            since_BT: see `TransformerXL.forward`.
        Returns:
            The nats of its tokens, detached.
        Raises:
            NonFiniteError: if the gradient is not finite; before the update, on all ranks.
        """
        self.lr = self.plateau.apply(self.schedule.rate(self.progress.step, self.share))
        self.optimizers.set_learning_rate(self.lr)
        self._redraw()
        self.watch.begin(self.progress.step + 1, self.progress.epoch, self.progress.batch + 1)
        left = self.update((input_BT, target_BT, since_BT), self.memories)
        self.memories = left.memories
        self.grad_norm = left.grad_norm
        self.memory_loss = left.memory_loss
        self.progress.step += 1
        self.average.update(self.progress.step)
        self.progress.batch += 1
        self.progress.n_token += target_BT.numel() * self.ranks.world
        if self.budget is not None:
            self.budget.read()
            self.progress.seconds = self.budget.trained_s
        return left.nll_BT

    @property
    def share(self) -> float | None:
        """Share of the time that is used; None: the training ends after a number of updates."""
        if self.budget is None:
            return None
        return self.budget.share

    @property
    def is_over(self) -> bool:
        """True if all updates are made, or the time is used; one update is made at least."""
        if self.progress.step >= self.config.max_step:
            return True
        return self.budget is not None and self.budget.is_over and self.progress.step > 0

    def context_now(self) -> Context:
        """The context of the next update: its memory is as long as drawn, the same on all ranks and
        after a resume.
        """
        interval = self.config.draw_mem_len
        longest = self.context.mem_len
        if not interval:
            return self.context
        draw = torch.Generator().manual_seed(
            self.config.seed + 7919 * (self.progress.step // interval)
        )
        if self.context.same_length:
            shortest = 1
        else:
            shortest = 0
        mem_len = int(torch.randint(shortest, longest + 1, (), generator=draw))
        return dataclasses.replace(self.context, mem_len=mem_len)

    def next_epoch(self) -> None:
        """Begin the text again, with an empty memory."""
        self.progress.epoch += 1
        self.progress.batch = 0
        self.memories = [None] * self.config.batch_chunk

    def check(self) -> None:
        """Raise `NonFiniteError` if a gradient since the last check was not finite; no update has
        been made since then. Synchronises the device.
        """
        if self.scaler is not None and self.scaler.get_scale() < _SMALLEST_SCALE:
            raise NonFiniteError(
                f"step {self.progress.step}: the gradient is not finite at any scale; lower --lr,"
                " or use bfloat16"
            )
        bad = self.watch.read()
        if bad is not None:
            self._stop_or_count(bad)

    def note_validation(self, nats: float, n_token: int) -> None:
        """Take in a validation loss, in nats per token, over so many tokens. One of other tokens than
        before, as with another --max_eval_steps, is the best so far.
        """
        progress = self.progress
        if progress.n_validated not in (0, n_token):
            progress.best_nats = math.inf
            self.plateau.best = math.inf
            if self.ranks.is_main:
                print_line(
                    f"| this validation reads {n_token:,} tokens, those before"
                    f" {progress.n_validated:,}: their best is not compared with it"
                )
        progress.n_validated = n_token
        progress.best_nats = min(progress.best_nats, nats)
        self.plateau.see(nats)

    def snapshot(self) -> Snapshot:
        """The state besides the weights."""
        if self.config.swap_mem and self.ranks.device.type == "cuda":
            torch.cuda.synchronize(self.ranks.device)
        parts = []
        for memory in self.memories:
            if memory is not None:
                parts.append(memory)
        progress = dataclasses.asdict(self.progress) | {"plateau": self.plateau.state()}
        if self.scaler is not None:
            progress["scaler"] = self.scaler.state_dict()
        rng = {"cpu": torch.get_rng_state()}
        if self.ranks.device.type == "cuda":
            rng["cuda"] = torch.cuda.get_rng_state(self.ranks.device)
        optimizer = self.optimizers.state() | self.average.trained()
        return Snapshot(finite(progress), optimizer, joined(parts) if parts else None, rng)

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot; the weights are restored elsewhere. Raises `UsageError` if it
        does not fit the model and its optimizer.
        """
        try:
            self._restore_progress(snapshot.progress)
        except (ValueError, KeyError) as error:
            raise damaged(snapshot.folder / PROGRESS, error) from None
        try:
            never_updated = self.scaler is not None or self.progress.n_skipped >= self.progress.step
            optimizer = self.average.take_trained(snapshot.optimizer)
            if optimizer or not never_updated:
                self.optimizers.load(optimizer)
        except ValueError as error:
            raise damaged(snapshot.folder / OPTIMIZER, error) from None
        if snapshot.memory is not None:
            if self.config.swap_mem:
                where = torch.device("cpu")
            else:
                where = self.ranks.device
            self.memories = [*chunks(snapshot.memory.to(where), self.config.batch_chunk)]
        if snapshot.rng:
            self._restore_rng(snapshot)
        # another number of processes: dropout cannot continue exactly, but must differ between
        # ranks
        else:
            torch.manual_seed(self.config.seed + 7919 * self.progress.step + self.ranks.rank)

    def _restore_rng(self, snapshot: Snapshot) -> None:
        try:
            torch.set_rng_state(snapshot.rng["cpu"])
            if self.ranks.device.type == "cuda" and "cuda" in snapshot.rng:
                torch.cuda.set_rng_state(snapshot.rng["cuda"], self.ranks.device)
        # of the library: not so many bytes as a state has
        except (RuntimeError, TypeError, KeyError) as error:
            raise damaged(
                snapshot.folder / "streams_*.safetensors", f"no random state ({error})"
            ) from None

    def _restore_progress(self, saved: dict[str, Any]) -> None:
        own = {
            "best_nats": float | None,
            "plateau": dict[str, float | None],
            "scaler": dict[str, float],
        }
        saved = dict(require_fields(saved, get_type_hints(Progress) | own))
        for name, value in saved.items():
            if isinstance(value, int) and not 0 <= value < 2**53:
                raise ValueError(f"{name} is {value}, which counts nothing")
        self.plateau.load(saved.pop("plateau"))
        scaler = saved.pop("scaler", None)
        if self.scaler is not None and scaler is not None:
            self.scaler.load_state_dict(scaler)
        saved["best_nats"] = math.inf if saved["best_nats"] is None else saved["best_nats"]
        # of checkpoints without n_token
        n_token = saved["step"] * self.config.batch_size * self.context.tgt_len
        self.progress = Progress(**{"n_token": n_token, **saved})

    def _update(self, batch: Batch, remembered: list[Memory | None]) -> Update:
        """What an update does on the device; none of its gradients is left, also where it fails."""
        try:
            return self._updated(batch, remembered)
        finally:
            self.optimizers.zero_grad()

    def _updated(self, batch: Batch, remembered: list[Memory | None]) -> Update:
        nll_BT, memories, memory_loss = self._backward(batch, remembered)
        if self.scaler is not None:
            self.optimizers.unscale_with(self.scaler)
        grad_norm = self._gradient_norm()
        self.watch.note(grad_norm, nll_BT)
        divisor = self._divisor(grad_norm)
        if self.checks_later:
            self.optimizers.step(skip=(self.watch.step >= 0).float(), divisor=divisor)
        elif not self._update_or_skip(divisor):
            memories = _finite(remembered)
        if self.scaler is not None:
            self.scaler.update()
        return Update(nll_BT, memories, grad_norm, memory_loss)

    def _gradient_norm(self) -> Tensor:
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        return whole(torch.nn.utils.get_total_norm(grads))

    def _divisor(self, grad_norm: Tensor) -> Tensor | None:
        """Of the gradients, so that their norm is --clip at most, as `clip_grad_norm_` has it; None:
        they are not clipped.
        """
        if not self.config.clip:
            return None
        return ((grad_norm + 1e-6) / self.config.clip).clamp(min=1)

    def _backward(
        self, batch: Batch, remembered: list[Memory | None]
    ) -> tuple[Tensor, list[Memory | None], Tensor | None]:
        """Compute the gradients; nats, memories and the memory's loss as in `Update`."""
        input_BT, target_BT, since_BT = batch
        nats = self.nats
        n_chunk = self.config.batch_chunk
        context = self.context_now()
        memories: list[Memory | None] = []
        nlls = []
        own = []
        if since_BT is None:
            since = [None] * n_chunk
        else:
            since = since_BT.chunk(n_chunk)
        parts = zip(
            input_BT.chunk(n_chunk), target_BT.chunk(n_chunk), since, remembered, strict=True
        )
        for i, (input_part, target_part, since_part, memory) in enumerate(parts):
            with (
                nats.no_sync()
                if isinstance(nats, DistributedDataParallel) and i < n_chunk - 1
                else nullcontext()
            ):
                if memory is not None and self.config.swap_mem:
                    memory = memory.to(self.ranks.device)
                with autocast(self.ranks.device, self.dtype):
                    loss_BT, nll_BT, memory, of_memory = nats(
                        input_part, target_part, memory, context, since_part
                    )
                loss = loss_BT.mean() / n_chunk
                (loss if self.scaler is None else self.scaler.scale(loss)).backward()
            nlls.append(nll_BT)
            own += [] if of_memory is None else [of_memory]
            memories.append(swapped_out(memory) if self.config.swap_mem else memory)
        reshard(self.model)
        if own:
            memory_loss = torch.stack(own).mean()
        else:
            memory_loss = None
        return torch.cat(nlls), memories, memory_loss

    def _redraw(self) -> None:
        """Redraw the random features or rotations of attention rules, the same on all ranks."""
        interval = self.config.redraw_interval
        step = self.progress.step
        if interval and step and step % interval == 0:
            redraw(self.model, torch.Generator().manual_seed(self.config.seed + 7919 * step))

    def _fix_gradient_buckets(self) -> None:
        """Run one backward pass whose result is discarded. After its first one
        DistributedDataParallel rebuilds its buckets, which changes the order of summation: a
        resumed run must not use the first order where an uninterrupted run uses the second. With
        the shapes of a step, or torch.compile would take the shapes for variable, and in training
        mode, in which every parameter gets a gradient; a model that was loaded is not in it.
        """
        self.nats.train()
        n_row = self.config.batch_size // self.ranks.world // self.config.batch_chunk
        ids = torch.zeros(n_row, self.context.tgt_len, dtype=torch.int64)
        with autocast(self.ranks.device, self.dtype):
            loss_BT, *_ = self.nats(ids, ids, None, self.context)
        loss_BT.mean().backward()
        self.model.zero_grad()

    def _update_or_skip(self, divisor: Tensor | None) -> bool:
        """Update the weights, unless the gradient is not finite; whether that was done."""
        bad = self.watch.read()
        if bad is None:
            self.progress.n_skipped_in_a_row = 0
            self.optimizers.step(divisor=divisor, scaler=self.scaler)
            return True
        self._stop_or_count(bad)
        return False

    def _stop_or_count(self, bad: BadStep) -> None:
        """Stop, or count a skipped update, as --on_nonfinite says. Overflows of float16 gradients
        never stop a training.
        """
        progress = self.progress
        bad_ranks = []
        for rank, is_bad in enumerate(self.ranks.gathered(bad.has_bad_loss)):
            if is_bad:
                bad_ranks.append(rank)
        if self.scaler is not None and not bad_ranks:
            return
        where = self._describe(bad, bad_ranks)
        if self.config.on_nonfinite == "stop":
            advice = _STOPPED
            if self.config.cuda_graph is True:
                advice += " --no_cuda_graph"
            raise NonFiniteError(where + advice)
        progress.n_skipped_in_a_row += 1
        progress.n_skipped += 1
        if progress.n_skipped_in_a_row > self.config.max_nonfinite:
            raise NonFiniteError(
                f"{where}; more than --max_nonfinite {self.config.max_nonfinite} in a row; lower"
                " --lr"
            )
        if self.ranks.is_main:
            print_line(f"| skipped: {where}")

    def _describe(self, bad: BadStep, bad_ranks: list[int]) -> str:
        """Name the step, and the ranks and streams whose loss is not finite."""
        each = self.config.batch_size // self.ranks.world
        streams = ", ".join(
            f"rank {r} (streams {r * each} to {(r + 1) * each - 1})" for r in bad_ranks
        )
        what = "the gradient is not finite, the losses are"
        if bad_ranks:
            what = f"the loss is not finite on {streams}"
        return f"step {bad.step}, epoch {bad.epoch}, segment {bad.segment}: {what}"


def _finite(memories: list[Memory | None]) -> list[Memory | None]:
    """What is not finite taken out."""
    found: list[Memory | None] = []
    for memory in memories:
        if memory is not None:
            memory = without_bad_rows(memory)
        found.append(memory)
    return found


_SMALLEST_SCALE = 2.0**-10  # of the float16 loss; starts at 2^16, halved at each overflow
_STOPPED = (
    "; the update was not made; lower --lr, or continue from the last checkpoint with --resume"
    " --on_nonfinite skip"
)


def autocast_dtype(config: TrainConfig, device: torch.device) -> torch.dtype:
    """The dtype of matrix products in training."""
    return getattr(torch, dtype_on(device, config.dtype))
