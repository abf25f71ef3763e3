"""Which projections train.py makes the softmax share with the embedding."""

from typing import Any

import pytest

from txl import TransformerXL
from txl.commands.shape import shape_of
from txl.config import Context


@pytest.mark.parametrize(
    ("flags", "shared"),
    [
        ({}, [False]),
        ({"cutoffs": (10, 30)}, [False, True, True]),
        ({"cutoffs": (10, 30), "div_val": 2}, [False, True, True]),
        ({"cutoffs": (10, 30), "not_tied": True}, [False, True, True]),
    ],
)
def test_the_tail_clusters_share_their_projection_and_the_shortlist_does_not(
    flags: dict[str, Any], shared: list[bool]
) -> None:
    """As in the original; the tables are shared unless --not_tied."""
    sizes = {"n_layer": 1, "n_head": 1, "d_head": 4, "d_model": 8, "d_embed": 4, "d_inner": 4}
    model = TransformerXL(shape_of(sizes | flags, Context()).of_words(50, "text"))
    words_in, words_out = model.word_emb, model.softmax
    theirs = [words_in.projs[0 if len(words_in.projs) == 1 else i] for i in range(len(shared))]
    assert [ours is their for ours, their in zip(words_out.projs, theirs, strict=True)] == shared
    assert {ours is their for ours, their in zip(words_out.tables, words_in.tables, strict=True)} == {
        not flags.get("not_tied")
    }
