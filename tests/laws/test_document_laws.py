"""What must hold of documents that are masked row by row: a token sees its own document and nothing else."""

import pytest
import torch
from torch import Tensor

from tests.laws.conftest import build
from txl import Context, TransformerXL
from txl.config import UsageError

FAR = Context(mem_len=100)
BORDERS = ((0, 5, 17), (0, 1, 9))
"""Where the documents of each row begin."""


def since(borders: tuple[tuple[int, ...], ...] = BORDERS, n_token: int = 24) -> Tensor:
    """Tokens before each one in its document, (B, T)."""
    begins = [[max(b for b in row if b <= i) for i in range(n_token)] for row in borders]
    return torch.arange(n_token) - torch.tensor(begins)


def read(model: TransformerXL, token_BT: Tensor, since_BT: Tensor | None, sizes: list[int], context: Context) -> Tensor:
    memory, hiddens = None, []
    marks = [None] * len(sizes) if since_BT is None else since_BT.split(sizes, dim=1)
    for segment_BT, mark_BT in zip(token_BT.split(sizes, dim=1), marks, strict=True):
        hidden_BTD, memory = model(segment_BT, memory, context, mark_BT)
        hiddens.append(hidden_BTD)
    return torch.cat(hiddens, dim=1)


@pytest.mark.parametrize("context", [FAR, Context(mem_len=9, same_length=True)], ids=str)
def test_what_stood_before_a_document_makes_no_difference(
    model: TransformerXL, token_BT: Tensor, context: Context
) -> None:
    sizes = [7, 2, 15]
    before = read(model, token_BT, since(), sizes, context)
    for n in (1, 2):
        other_BT = token_BT.clone()
        for row, borders in enumerate(BORDERS):
            other_BT[row, : borders[n]] = (other_BT[row, : borders[n]] + 7) % 50
        after = read(model, other_BT, since(), sizes, context)
        for row, borders in enumerate(BORDERS):
            torch.testing.assert_close(after[row, borders[n] :], before[row, borders[n] :])
            assert not torch.allclose(after[row, borders[n] - 1], before[row, borders[n] - 1])


def test_a_document_is_read_as_if_it_were_alone(relative_model: TransformerXL, token_BT: Tensor) -> None:
    together = read(relative_model, token_BT, since(), [7, 2, 15], FAR)
    for row, borders in enumerate(BORDERS):
        for begin, end in zip(borders, (*borders[1:], 24), strict=True):
            alone = relative_model(token_BT[row : row + 1, begin:end], None, FAR).hidden_BTD
            torch.testing.assert_close(together[row : row + 1, begin:end], alone)


def test_a_row_of_one_document_is_the_plain_text(model: TransformerXL, token_BT: Tensor) -> None:
    whole = torch.arange(24).expand(2, 24)
    plain = read(model, token_BT, None, [7, 2, 15], FAR)
    torch.testing.assert_close(read(model, token_BT, whole, [7, 2, 15], FAR), plain)
    torch.testing.assert_close(read(model, token_BT, whole + 1000, [7, 2, 15], FAR), plain)


@torch.no_grad()
def test_keys_and_values_are_masked_like_hidden_states(model: TransformerXL, token_BT: Tensor) -> None:
    expected, memory = read(model, token_BT, since(), [7, 2, 15], FAR), model.fresh_memory(2)
    parts = (x.split([7, 2, 15], dim=1) for x in (token_BT, since(), expected))
    for segment_BT, mark_BT, hidden_BTD in zip(*parts, strict=True):
        found_BTD, memory = model(segment_BT, memory, FAR, mark_BT)
        torch.testing.assert_close(found_BTD, hidden_BTD)


@pytest.mark.parametrize("rule", ["performer", "lsh"])
def test_rules_that_cannot_mask_documents_say_so(rule: str, token_BT: Tensor) -> None:
    model = build("none", attention=rule)
    with pytest.raises(UsageError, match=f"--attention {rule}: this rule does not mask the documents"):
        model(token_BT, None, FAR, since())
