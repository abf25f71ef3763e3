"""What a model keeps of a text, so that the text can go on later, or be gone on with many times."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from txl.config import Context, UsageError
from txl.inference.frozen import Frozen
from txl.memory import full_memory, require_works
from txl.model.streams import Memory
from txl.model.transformer import TransformerXL
from txl.positions import require_serves

_TELLING = Context(mem_len=1_000_003, compressed_len=1_009, lookup_len=10_007)
"""Lengths that tell in a shape which of them an axis has."""


class Begun(NamedTuple):
    """A text of one row that has begun: what is remembered at the end of its last whole segment, as
    hidden states, and the ids since. Whoever goes on reads these again, so that segments end where
    they would in one piece.

    Attributes:
        context: how the text is read, from its first token on.
        memory: of one row.
        again: the last `ext_len` ids of that segment, which the next one reads again.
        since: 1 to `tgt_len` ids. The last one is always among them: what follows a text is
            predicted from its last token.
        n_token: ids of the text so far.
    """

    context: Context
    memory: Memory
    again: tuple[int, ...]
    since: tuple[int, ...]
    n_token: int

    @property
    def ids(self) -> list[int]:
        """What stands before the first token that is new."""
        return [*self.again, *self.since]

    def context_for(self, n_new: int) -> Context:
        """The context with lengths limited to this text and n_new tokens more; results are the
        same."""
        return self.context.at_most(self.n_token + n_new)


def beginning(model: TransformerXL, context: Context, first: int) -> Begun:
    """A text whose first id is all there is."""
    return Begun(context, model.empty_memory(1), (), (first,), 1)


@torch.no_grad()
def read_on(
    model: TransformerXL,
    begun: Begun,
    ids: Sequence[int],
    *,
    after_segment: Callable[[], object] = lambda: None,
) -> Begun:
    """The text with these ids at its end. The model must be in evaluation mode.

    Args:
        after_segment: called once for each segment that was read; there are `n_whole`.
    Raises:
        UsageError: if hidden states are not finite.
    """
    read = Frozen(model)
    context = begun.context
    memory = begun.memory.to(model.device)
    again = list(begun.again)
    unread = [*begun.since, *ids]
    for _ in range(n_whole(begun, len(ids))):
        segment = again + unread[: context.tgt_len]
        del unread[: context.tgt_len]
        _, memory = read(torch.tensor([segment]), memory, context)
        again = segment[max(0, len(segment) - context.ext_len) :]
        after_segment()
    if not is_finite(memory):
        raise UsageError(
            "what the model remembers of the text is not finite; use another checkpoint, or"
            " another --dtype"
        )
    return Begun(context, memory, tuple(again), tuple(unread), begun.n_token + len(ids))


def n_whole(begun: Begun, n_new: int) -> int:
    """Segments that are whole before the last of n_new tokens more."""
    return (len(begun.since) + n_new - 1) // begun.context.tgt_len


def is_finite(memory: Memory) -> bool:
    """True if all that is remembered is."""
    return all(bool(tensor.isfinite().all()) for tensor in memory.named().values())


def misfit(model: TransformerXL, begun: Begun, dtype: torch.dtype) -> str:
    """Why this cannot be what the model has read; empty: it can.

    Args:
        dtype: in which the model computes, where that is one of 16 bits.
    """
    try:
        require_works(model.config.memory, begun.context, can_change=False)
        require_serves(model.layers[0].attn.pos, begun.context, can_change=False)
    except UsageError as error:
        return str(error)
    return _misfit_of_ids(begun, model.config.n_token) or _misfit_of_states(model, begun, dtype)


def _misfit_of_ids(begun: Begun, n_word: int) -> str:
    context = begun.context
    n_since = (begun.n_token - 1) % context.tgt_len + 1
    n_again = min(context.ext_len, begun.n_token - n_since)
    if begun.n_token < 1 or (len(begun.since), len(begun.again)) != (n_since, n_again):
        return f"its ids are not those since the last segment of {begun.n_token} tokens"
    if not all(0 <= token < n_word for token in begun.ids):
        return f"it holds ids outside the vocabulary of {n_word}"
    return ""


def _misfit_of_states(model: TransformerXL, begun: Begun, dtype: torch.dtype) -> str:
    """What is wrong with the tensors. Lengths that grow together must be the same, and at most what
    the context allows."""
    tensors = begun.memory.named()
    empty = model.empty_memory(1).named()
    if tensors.keys() != empty.keys():
        return "its tensors are not those of this memory"
    like = torch.empty(0, device="meta")
    full = full_memory(model.config, begun.context, 1, like=like).named()
    growing = full_memory(model.config, _TELLING, 1, like=like).named()
    sizes: dict[tuple[str, int], int] = {}
    for name, tensor in tensors.items():
        start = empty[name]
        shape = tuple(tensor.shape)
        if not _is_of_dtype(tensor, start, dtype):
            return f"layer {name} is of {tensor.dtype}, which does not fit the model"
        if not _is_grown(shape, start.shape, full[name].shape, growing[name].shape):
            return f"layer {name} has the shape {shape}, which does not fit the model"
        of_layer = ""
        if not model.layers[0].memory.traits.keeps_places:
            of_layer = name.partition(".")[0]
        for size, first, far in zip(shape, start.shape, growing[name].shape, strict=True):
            if first != far and sizes.setdefault((of_layer, far), size) != size:
                return f"layer {name} holds {size} states where others hold another number"
    return ""


def _is_grown(
    shape: Sequence[int], empty: Sequence[int], full: Sequence[int], growing: Sequence[int]
) -> bool:
    """True if each axis has the length that it begins with, or at most the one that it may have;
    just that one where it does not depend on the context."""
    if len(shape) != len(empty):
        return False
    for size, first, most, far in zip(shape, empty, full, growing, strict=True):
        least = first + 1
        if most == far:
            least = most
        if size != first and not least <= size <= most:
            return False
    return True


def _is_of_dtype(tensor: Tensor, empty: Tensor, dtype: torch.dtype) -> bool:
    if tensor.dtype == empty.dtype:
        return True
    return tensor.dtype == dtype and dtype.itemsize == 2 and empty.is_floating_point()
