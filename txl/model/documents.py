"""What is not finite in a document, or an episode, reaches no later one of its row.

Attention gives hidden tokens the probability 0, and 0 times NaN is NaN, in values and in gradients.
So what is not finite is taken out where its document has ended, and the outputs that it belongs to
are NaN all the same.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from txl.model.span import Span
from txl.model.streams import Memory, of_named, of_rows, per_row

_NEVER = -(2**31)
"""A place that no token sees."""


class Ended(NamedTuple):
    """A segment and what is remembered before it, in which documents that end in the segment are
    finite.

    Attributes:
        h_BTD: the vectors of the segment.
        memory: what is remembered.
        spoiled_BT: True for tokens that see something that was not finite and is taken out.
    """

    h_BTD: Tensor
    memory: Any
    spoiled_BT: Tensor

    def marked(self, out_BTD: Tensor) -> Tensor:
        """The output of the segment, with NaN where it would be NaN if nothing
        had been taken out.
        """
        return torch.where(self.spoiled_BT[..., None], torch.nan, out_BTD)


def without_ended(h_BTD: Tensor, memory: Any, span: Span) -> Ended:
    """Zeros in place of what is not finite, in documents that end in the segment or ended before
    it.

    What is not finite in a row's last document stays: its end is not known.

    Args:
        h_BTD: the vectors of the segment, (B, T, D).
        span: says how many tokens before each one belong to its document.
    """
    since_BT = span.since_BT
    assert since_BT is not None
    t_T = torch.arange(h_BTD.shape[1], device=h_BTD.device)
    last_begin_B = t_T[-1] - since_BT[:, -1]
    bad_BT = ~h_BTD.isfinite().all(-1) & (t_T < last_begin_B[:, None])
    if isinstance(memory, Memory):
        finite_in = _finite_in
    else:
        finite_in = type(memory).finite_in
    memory, was_bad_B = finite_in(memory, last_begin_B >= 0)
    place_BT = torch.where(bad_BT, t_T, _NEVER).cummax(dim=1).values
    # the memory stands before token 0
    place_BT = torch.where(was_bad_B[:, None], place_BT.clamp(min=-1), place_BT)
    first_seen_BT = (t_T - since_BT).clamp(min=_NEVER + 1)
    return Ended(h_BTD.masked_fill(bad_BT[..., None], 0), memory, place_BT >= first_seen_BT)


def _finite_in(memory: Memory, row_B: Tensor) -> tuple[Memory, Tensor]:
    """With zeros for what is not finite in the rows where `row_B` is True, (B,), and in which rows
    that was."""
    tensors = memory.named()
    bad = {}
    for name, tensor in tensors.items():
        bad[name] = not_finite_in(tensor, row_B)
    was_bad_B = torch.stack([of_rows(bad_BX).any(1) for bad_BX in bad.values()]).any(0)
    return of_named({name: x.masked_fill(bad[name], 0) for name, x in tensors.items()}), was_bad_B


def not_finite_in(tensor: Tensor, row_B: Tensor) -> Tensor:
    """True where a tensor of rows is not finite, in the rows where `row_B` is True."""
    return ~tensor.isfinite() & per_row(row_B, tensor)
