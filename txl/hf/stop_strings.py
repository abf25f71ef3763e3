"""Stop strings of `generate` with a vocabulary of words.

transformers finds out what each token adds to a text by decoding it after "abcdef", which is no
word. Here the text is decoded.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria  # pyright: ignore[reportMissingImports]

_MARGIN = 8
"""Tokens decoded besides those that a stop string can consist of: joined numbers take three for
one.
"""


class StopWords(StoppingCriteria):
    """Ends a row in whose text, as the tokenizer decodes it, the last token completes a stop
    string.
    """

    def __init__(self, tokenizer: Any, stop_strings: str | Sequence[str]) -> None:
        self._tokenizer = tokenizer
        if isinstance(stop_strings, str):
            self._stop_strings = [stop_strings]
        else:
            self._stop_strings = list(stop_strings)
        self._n_recent = max(map(len, self._stop_strings), default=0) + _MARGIN

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        """True for each row (B, T) that ends."""
        ended = []
        for ids in input_ids.tolist():
            ended.append(self._is_completed(ids))
        return torch.tensor(ended, device=input_ids.device)

    def _is_completed(self, ids: list[int]) -> bool:
        recent = _without_spaces(self._tokenizer.decode(ids[-self._n_recent :]))
        possible = []
        for stop in self._stop_strings:
            if _without_spaces(stop) in recent:
                possible.append(stop)
        if not possible:
            return False  # spares decoding the whole text, on which spaces around quotes depend
        text = self._tokenizer.decode(ids)
        before = self._tokenizer.decode(ids[:-1])
        places = []
        for stop in possible:
            places.append((text.rfind(stop), before.rfind(stop)))
        return any(place >= 0 and place != place_before for place, place_before in places)


def _without_spaces(text: str) -> str:
    return "".join(text.split())
