"""Rows of a batch that are padded."""

from dataclasses import dataclass

import torch
from torch import Tensor

from txl.ops.operator import is_traced


@dataclass(frozen=True)
class Padding:
    """Which tokens of a segment are padding.

    Their states are zeros in every layer, as in an empty memory.
    """

    is_token_BT: Tensor

    @classmethod
    def of(cls, attention_mask: Tensor | None, *, n_new: int, has_mems: bool) -> "Padding | None":
        """That of a segment of `n_new` tokens; None if there is none. Raises `ValueError` for
        padding between memory and tokens.
        """
        if attention_mask is None:
            return None
        padding = cls(attention_mask[:, -n_new:] != 0)
        if is_traced():
            return padding
        if bool(padding.is_token_BT.all()):
            return None
        if has_mems and bool((padding._first_B > 0).any()):
            raise ValueError(
                "padding between mems and tokens: pad the first segment only, which has no mems"
            )
        return padding

    @property
    def _first_B(self) -> Tensor:
        return self.is_token_BT.int().argmax(1)

    def since_BT(self, n_mem: int) -> Tensor:
        """See `Span`: each row sees as many zeros before its tokens as a row without padding, those
        of the memory.
        """
        place_T = torch.arange(self.is_token_BT.shape[1], device=self.is_token_BT.device)
        return (n_mem + place_T - self._first_B[:, None]).clamp(min=0)

    def zeroed(self, h_BTD: Tensor) -> Tensor:
        """States of the segment, with zeros for padding."""
        return h_BTD.where(self.is_token_BT[..., None], 0.0)


def require_ascending(position_ids: Tensor | None, attention_mask: Tensor | None) -> None:
    """Raise `ValueError` if positions (B, T) or (1, T) do not count up by one from each token to
    the next: attention knows distances in the row alone.
    """
    if position_ids is None or is_traced():
        return
    is_step_BT = position_ids.diff(dim=1) == 1
    if attention_mask is not None:
        is_token_BT = attention_mask[:, -position_ids.shape[1] :] != 0
        is_step_BT = is_step_BT | ~(is_token_BT[:, 1:] & is_token_BT[:, :-1])
    if not bool(is_step_BT.all()):
        raise ValueError(
            "position_ids must count up by one in each row; give texts in rows of their own"
        )
