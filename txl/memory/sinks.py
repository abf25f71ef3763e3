"""The memory of StreamingLLM: the first tokens of a stream, and its last ones."""

from dataclasses import dataclass

import torch
from torch import Tensor

from txl.config import FEW, Context, ModelConfig, PartSettings, option
from txl.model.memory import Fifo, Reading, State
from txl.model.rule import Traits
from txl.model.span import Span


class Sinks(Fifo):
    """The layer's inputs for the first A = n_sink tokens of a stream and for the last M = mem_len,
    detached.

    m' = SG([x_(:A), x_(-M:)])  of x = [m, h];  SG(x) while x has no more than A + M tokens

    Source: Xiao et al. 2023 (arXiv 2309.17453), sec. 3.2. As there, places count within what is
    kept: the last sink stands right before the first of the last M tokens, so that no query is
    further than M + A places from a sink, however long the text is.
    Differs from the paper, which drops a token for each one that is read: here tokens are dropped
    where a segment ends, as in `Fifo`.
    Documents: each row keeps the first tokens of its own document. `Span.first_BT`, which counts
    every token of a document, stays right: a document that does not fit has a gap behind its sinks
    and owns all that is kept, and one that fits has none and stands as it was read.
    """

    @dataclass(frozen=True, kw_only=True)
    class Settings(PartSettings):
        n_sink: int = option(
            4, "tokens of the beginning of a stream, or document, that are never dropped", **FEW
        )

    traits = Traits(
        {
            "recurrence": ("below",),
            "same_length": (False,),
            "clamp_len": (-1, 0),
            "convention": ("txl",),
            "attention_by_distance": (False,),
        },
        is_queue=True,
    )

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.n_sink = config.settings(self.Settings).n_sink

    @classmethod
    def full(cls, config: ModelConfig, context: Context, batch_size: int, *, like: Tensor) -> State:
        n_kept = config.settings(cls.Settings).n_sink + context.mem_len
        return State(like.new_zeros(batch_size, n_kept, config.d_model))

    def next_state(self, state: State, h_BTD: Tensor, out_BTD: Tensor, reading: Reading) -> State:
        n_new = max(0, h_BTD.shape[1] - reading.context.ext_len)
        x_BLD = torch.cat([state.hidden_BMD, h_BTD.detach()[:, :n_new]], dim=1)
        n_gone = n_dropped(x_BLD.shape[1], self.n_sink, reading.context.mem_len)
        if not n_gone:
            return State(x_BLD)
        if reading.span.since_BT is None:
            return State(without_middle(x_BLD, self.n_sink, n_gone))
        begin_B = begins(reading.span, n_new, n_gone)
        place_BM = places(begin_B, self.n_sink, n_gone, x_BLD.shape[1])
        return State(x_BLD.take_along_dim(place_BM[..., None], dim=1))


def n_dropped(n_seen: int, n_sink: int, mem_len: int) -> int:
    """How many of so many tokens are dropped, behind the sinks."""
    return max(0, n_seen - n_sink - mem_len)


def without_middle(x_BLD: Tensor, n_sink: int, n_gone: int) -> Tensor:
    """A copy without the n_gone tokens behind the sinks, (B, L - n_gone, D)."""
    return torch.cat([x_BLD[:, :n_sink], x_BLD[:, n_sink + n_gone :]], dim=1)


def begins(span: Span, n_new: int, n_gone: int) -> Tensor:
    """Where the sinks of each row begin, (B,): with the document that the last kept token is of.
    Where that document fits, there is no gap, and what is kept are the last tokens.

    Args:
        span: of the segment, with documents.
        n_new: its tokens that are kept.
        n_gone: see `n_dropped`.
    """
    assert span.first_BT is not None
    return span.first_BT[:, max(0, n_new - 1)].clamp(0, n_gone)


def places(begin_B: Tensor, n_sink: int, n_gone: int, n_seen: int) -> Tensor:
    """The places of all that is kept of so many tokens, (B, n_seen - n_gone), for sinks that begin
    there.
    """
    sink_BA = begin_B[:, None] + torch.arange(n_sink, device=begin_B.device)
    last_M = torch.arange(n_sink + n_gone, n_seen, device=begin_B.device)
    return torch.cat([sink_BA, last_M.expand(len(begin_B), -1)], dim=1)
