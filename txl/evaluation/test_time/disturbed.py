"""What of the memory is used: the model reads a memory whose older part is in another order, or
another text's, and its loss says what that costs.

Source: Khandelwal et al. 2018 (arXiv 1805.04623, sections 4 and 5), who change the words before an
LSTM's last k. Here states are changed, each computed over the text as it was.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from txl.config import Context, option, require
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
        " each segment; exchange: those of another stream, which is elsewhere in the text",
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


class DisturbedMemory(Frozen):
    """A predictor that reads each segment twice: over the disturbed memory for its losses, and over
    the memory as it is for what is remembered of it.
    """

    def __init__(self, model: TransformerXL, config: DisturbConfig) -> None:
        super().__init__(model)
        self.config = config
        self._draw = torch.Generator()

    def fresh_memory(self, batch_size: int) -> Any:
        """See `Frozen.fresh_memory`. Each text is disturbed alike. Raises `UsageError` if there is
        no other stream.
        """
        require_streams(self.config, batch_size)
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
                old = old.roll(1, rows)
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


def require_disturbs(model: TransformerXL, config: DisturbConfig, batch_size: int) -> None:
    """Raise `UsageError` if the memory of a model cannot be disturbed, or has no other stream."""
    memory = model.config.memory
    queues = [name for name, rule in MEMORIES.items() if keeps_states_in_order(rule)]
    require(
        memory in queues,
        f"--disturb {config.disturb}: changes the states of --memory {' or '.join(queues)}, and the"
        f" memory is {memory}; drop it",
    )
    require_streams(config, batch_size)


def keeps_states_in_order(rule: type[MemoryRule]) -> bool:
    """True if a memory keeps states of single tokens, in the order of the text."""
    return rule.traits.is_queue and "mem_len" not in rule.traits.works_with


def require_streams(config: DisturbConfig, n_stream: int) -> None:
    """Raise `UsageError` if there is no other stream to exchange with; a short text may have fewer
    than were asked for.
    """
    require(
        config.disturb != "exchange" or n_stream > 1,
        "--disturb exchange: there is no other stream; give --batch_size of at least 2, and a text"
        " that is long enough for it",
    )
