"""Evaluate a trained Transformer-XL as `txl eval` does, and once more with a perturbed memory: its
older states in another order, or another text's. The difference says what of the memory is used.

python -m lab.perturbed --work_dir RUN --disturb shuffle --disturb_beyond 64 ...

Source: Khandelwal et al. 2018 (arXiv 1805.04623, sections 4 and 5), who change the words before an
LSTM's last k. Here states are changed, each computed over the text as it was.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lab.measures.cost import Cost, costs_of
from txl.config import Checked, Context, build, option, require
from txl.data_utils.corpus import DataConfig
from txl.evaluation.config import EvalConfig
from txl.evaluation.conventions import reading_of
from txl.evaluation.reading import Predictor, ScoredRows
from txl.evaluation.rows import Row
from txl.evaluation.test_time.mixture import Mixture
from txl.inference.frozen import Frozen
from txl.inference.key_values import KeyValueMemory
from txl.model.rule import MemoryRule
from txl.model.streams import Memory
from txl.model.transformer import TransformerXL
from txl.programs.eval import MOST_USED
from txl.programs.run import run
from txl.registry import MEMORIES
from txl.runs.evaluation import Measure, resolve_evaluation, score_splits
from txl.runs.scoring import Adapted, Split, streams_of
from txl.runtime.distributed import Ranks, process_group
from txl.runtime.log import print_line
from txl.settings.flags import read_flags
from txl.usage import MemoryUse


@dataclass(frozen=True, kw_only=True)
class PerturbConfig(Checked):
    """What the loss owes to the order and to the contents of the memory (Khandelwal et al. 2018)."""

    disturb: Literal["shuffle", "exchange"] = option(
        "shuffle",
        "shuffle: the states of the memory in random order, another for each segment; exchange:"
        " those of the stream half of the text away",
    )
    disturb_beyond: int = option(
        0, "the last states of the memory, so many, stay as they are", minimum=0
    )

    @property
    def name(self) -> str:
        """What is done, in words."""
        done = {"shuffle": "shuffled", "exchange": "exchanged"}[self.disturb]
        return f"memory {done} beyond {self.disturb_beyond}"

    def require_reading(self, contexts: Iterable[Context], config: EvalConfig, world: int) -> None:
        """Raise `UsageError` if nothing of a memory would be perturbed, there are several
        processes (`world`) to exchange memories between, or documents are read alone: a row of them
        goes on into those that follow, and may be given its own.
        """
        require(
            config.convention == "txl",
            f"--convention {config.convention}: reproduces figures of plain models; drop it",
        )
        least = self.disturb_beyond + (2 if self.disturb == "shuffle" else 1)
        for context in contexts:
            require(
                context.mem_len >= least,
                f"--disturb_beyond {self.disturb_beyond}: a memory of {context.mem_len} has nothing"
                f" older to {self.disturb}; give less, or --mem_len of at least {least}",
            )
        if self.disturb == "shuffle":
            return
        require(world == 1, f"--disturb exchange: for one process, and there are {world}; use one")
        require(
            config.reset != "document",
            "--disturb exchange: exchanges streams of one text; give --reset never",
        )

    def require_apart(self, streams: Iterable[ScoredRows], context: Context) -> None:
        """Raise `UsageError` if a stream would be given what it reads or predicts itself."""
        if self.disturb != "exchange":
            return
        seen = context.mem_len + context.ext_len + context.tgt_len
        for stream in streams:
            n_stream = len(stream.first_B)
            other_B = np.roll(stream.first_B, _half(n_stream))
            distance_B = np.abs(stream.first_B - other_B)
            why = "this text is read in one stream, and there is no other"
            if n_stream > 1:
                why = f"streams {distance_B.min()} tokens apart, of which a segment sees {seen}"
            require(
                distance_B.min() > seen,
                f"--disturb exchange: {why}; give --batch_size 2, a longer text or a smaller"
                " --mem_len",
            )


class Perturbation(Measure):
    """What it costs that the memory is perturbed, of each way to read a split."""

    keeps_losses = True

    def __init__(self, config: PerturbConfig) -> None:
        self.config = config
        self.costs: list[Cost] = []

    def adapted(self, model: TransformerXL, ranks: Ranks) -> Adapted:
        """See `Measure.adapted`."""
        require_perturbs(model, self.config)
        # of one that is `Frozen` itself, hidden states are read and not its losses
        perturbed = Mixture(PerturbedMemory(model, self.config), ())

        def predictor(split: Split, config: EvalConfig, context: Context) -> Predictor:
            reading = reading_of(config.convention, model, context, n_token=len(split.ids))
            streams = streams_of(split, reading.context, config, ranks, n_warmup=reading.n_warmup)
            self.config.require_apart(streams, reading.context)
            return perturbed

        return Adapted(self.config.name, predictor)

    def of_split(self, split: Split, rows: list[Row], config: EvalConfig) -> list[Row]:
        """See `Measure.of_split`."""
        self.costs += costs_of(rows, starts=split.starts_if_any(), reset=config.reset)
        return rows

    def report(self, rows: Sequence[Row]) -> dict[str, Any]:
        """See `Measure.report`."""
        for cost in self.costs:
            print_line(cost.sentence())
        return {"costs": [cost.as_dict() for cost in self.costs]}


FLAGS = (EvalConfig, MemoryUse, PerturbConfig)
"""Whose fields are the flags, besides those of the text."""


def main(argv: Sequence[str]) -> None:
    typed = read_flags(
        argv,
        *FLAGS,
        DataConfig,
        description=__doc__ or "",
        first=(*MOST_USED, "disturb", "disturb_beyond"),
        presets="eval",
    )
    perturb = build(PerturbConfig, typed)
    with process_group(timeout_s=3600, device=typed.get("device", "auto")) as ranks:
        lm, data, config, additions = resolve_evaluation(typed, ranks)
        perturb.require_reading(config.look_backs(lm.context), config, ranks.world)
        score_splits(lm, data, config, additions, ranks, Perturbation(perturb))


class PerturbedMemory(Frozen):
    """A predictor that reads each segment twice: over the perturbed memory for its losses, and over
    the memory as it is for what is remembered of it.
    """

    def __init__(self, model: TransformerXL, config: PerturbConfig) -> None:
        super().__init__(model)
        self.config = config
        self._draw = torch.Generator()

    def fresh_memory(self, batch_size: int) -> Any:
        """See `Frozen.fresh_memory`. Each text is perturbed alike."""
        self._draw.manual_seed(0)
        return super().fresh_memory(batch_size)

    @torch.no_grad()
    def nll_and_hidden(
        self, input_BT: Tensor, target_BT: Tensor, memory: Any, context: Context
    ) -> tuple[Tensor, Tensor, Any]:
        """See `Frozen.nll_and_hidden`."""
        perturbed = self.perturbed(memory)
        nll_BT, hidden_BTD, _ = super().nll_and_hidden(input_BT, target_BT, perturbed, context)
        _, after = self(input_BT, memory, context)
        return nll_BT, hidden_BTD, after

    def perturbed(self, memory: Memory | KeyValueMemory) -> Memory | KeyValueMemory:
        """The memory with other states but for the last ones, and the sinks that it may begin with,
        in all layers alike.
        """
        n_sink = getattr(self.model.layers[0].memory, "n_sink", 0)
        n_old = max(0, memory.length - n_sink - self.config.disturb_beyond)
        if not n_old:
            return memory
        order_O = torch.randperm(n_old, generator=self._draw).to(self.model.device)

        def changed(x: Tensor, rows: int, tokens: int) -> Tensor:
            sizes = [n_sink, n_old, memory.length - n_sink - n_old]
            first, old, last = x.split(sizes, tokens)
            if self.config.disturb == "shuffle":
                old = old.index_select(tokens, order_O)
            else:
                old = old.roll(_half(x.shape[rows]), rows)
            return torch.cat([first, old, last], tokens)

        if isinstance(memory, KeyValueMemory):
            layers = []
            for layer in memory.layers:
                layers.append(layer.replaced(changed(layer.kv_2BNMH, 1, 3)))
            return memory.of(layers)
        states = []
        for state in memory.states:
            states.append(state._replace(hidden_BMD=changed(state.hidden_BMD, 0, 1)))
        return Memory(tuple(states))


def _half(n_stream: int) -> int:
    """By how many streams memories are exchanged."""
    return n_stream // 2


def require_perturbs(model: TransformerXL, config: PerturbConfig) -> None:
    """Raise `UsageError` if the memory of a model cannot be perturbed."""
    memory = model.config.memory
    queues = [name for name, rule in MEMORIES.items() if keeps_states_in_order(rule)]
    require(
        memory in queues,
        f"--disturb {config.disturb}: changes the states of --memory {' or '.join(queues)}, and the"
        f" memory is {memory}; drop it",
    )


def keeps_states_in_order(rule: type[MemoryRule]) -> bool:
    """True if a memory keeps states of single tokens, in the order of the text."""
    return rule.traits.is_queue and "mem_len" not in rule.traits.works_with


if __name__ == "__main__":
    sys.argv[0] = "lab.perturbed"
    run(main)
