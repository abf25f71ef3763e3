"""What of the memory is used: the model reads a memory whose older part is in another order, or
another text's, and its loss says what that costs.

Source: Khandelwal et al. 2018 (arXiv 1805.04623, sections 4 and 5), who change the words before an
LSTM's last k. Here states are changed, each computed over the text as it was.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from txl.config import Context, option, require
from txl.evaluation.reading import ScoredRows
from txl.evaluation.test_time.method import MethodSettings
from txl.inference.frozen import Frozen
from txl.inference.key_values import KeyValueMemory
from txl.model.rule import MemoryRule
from txl.model.streams import Memory
from txl.model.transformer import TransformerXL
from txl.registry import MEMORIES


@dataclass(frozen=True, kw_only=True)
class DisturbConfig(MethodSettings):
    """What the loss owes to the order and to the contents of the memory (Khandelwal et al. 2018)."""

    disturb: Literal["none", "shuffle", "exchange"] = option(
        "none",
        "also score the text with a disturbed memory. shuffle: its states in random order, anew for"
        " each segment; exchange: those of the stream half of the text away",
    )
    disturb_beyond: int = option(
        0,
        "the last states of the memory, so many, stay as they are",
        minimum=0,
        when=("disturb", "shuffle", "exchange"),
    )

    @property
    def name(self) -> str:
        if self.disturb == "none":
            return ""
        done = {"shuffle": "shuffled", "exchange": "exchanged"}[self.disturb]
        return f"memory {done} beyond {self.disturb_beyond}"

    def check(self, dtype: str, world: int) -> None:
        """See `MethodSettings.check`."""
        require(
            self.disturb != "exchange" or world == 1,
            f"--disturb exchange: for one process, and there are {world}; use one",
        )

    def require_reading(self, contexts: Iterable[Context], reset: str) -> None:
        """Raise `UsageError` if nothing of a memory would be disturbed, or documents are read
        alone: a row of them goes on into those that follow, and may be given its own.
        """
        if self.disturb == "none":
            return
        least = self.disturb_beyond + (2 if self.disturb == "shuffle" else 1)
        for context in contexts:
            require(
                context.mem_len >= least,
                f"--disturb_beyond {self.disturb_beyond}: a memory of {context.mem_len} has nothing"
                f" older to {self.disturb}; give less, or --mem_len of at least {least}",
            )
        require(
            self.disturb != "exchange" or reset != "document",
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


class DisturbedMemory(Frozen):
    """A predictor that reads each segment twice: over the disturbed memory for its losses, and over
    the memory as it is for what is remembered of it.
    """

    def __init__(self, model: TransformerXL, config: DisturbConfig) -> None:
        super().__init__(model)
        self.config = config
        self._draw = torch.Generator()

    def fresh_memory(self, batch_size: int) -> Any:
        """See `Frozen.fresh_memory`. Each text is disturbed alike."""
        self._draw.manual_seed(0)
        return super().fresh_memory(batch_size)

    @torch.no_grad()
    def nll_and_hidden(
        self, input_BT: Tensor, target_BT: Tensor, memory: Any, context: Context
    ) -> tuple[Tensor, Tensor, Any]:
        """See `Frozen.nll_and_hidden`."""
        disturbed = self.disturbed(memory)
        nll_BT, hidden_BTD, _ = super().nll_and_hidden(input_BT, target_BT, disturbed, context)
        _, after = self(input_BT, memory, context)
        return nll_BT, hidden_BTD, after

    def disturbed(self, memory: Memory | KeyValueMemory) -> Memory | KeyValueMemory:
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


def require_disturbs(model: TransformerXL, config: DisturbConfig) -> None:
    """Raise `UsageError` if the memory of a model cannot be disturbed."""
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
