"""Loss by where a token stood last, and by its frequency, against plain loops."""

from dataclasses import replace

import numpy as np
import pytest

from lab.measures.last_occurrence import (
    PLACES,
    by_occurrence,
    distance_to_last,
    frequency_edges,
    places,
)
from txl.config import UsageError
from txl.evaluation.measures.token_losses import TokenLosses

DICE = np.random.default_rng(0)
IDS = DICE.integers(0, 30, 200)
TGT_LEN, MEM_LEN = 8, 12
VISIBLE = np.array([0, *(1 + (place - 1) % TGT_LEN for place in range(1, len(IDS)))])
CONTEXT = {"tgt_len": TGT_LEN, "mem_len": MEM_LEN, "ext_len": 0, "same_length": False}
LOSSES = TokenLosses("test", CONTEXT, "", IDS, DICE.random(len(IDS)).astype(np.float32), VISIBLE)
COUNTS = np.array([0, 3, 9, 10, 99, 100, *DICE.integers(1, 5000, 24)])


def place_by_the_book(token: int) -> str:
    """Read from the ids that each part of the context holds."""
    begin = TGT_LEN * ((token - 1) // TGT_LEN)
    if IDS[token] in IDS[begin:token]:
        return "segment"
    if IDS[token] in IDS[max(0, begin - MEM_LEN) : begin]:
        return "memory"
    return "beyond" if IDS[token] in IDS[:token] else "never"


def test_the_distance_to_the_last_occurrence_is_that_of_a_loop() -> None:
    for ids in (IDS, np.array([5]), np.array([2, 2, 2]), np.array([], dtype=int)):
        expected = [
            next((i - k for k in range(i - 1, -1, -1) if ids[k] == ids[i]), 0)
            for i in range(len(ids))
        ]
        assert distance_to_last(ids).tolist() == expected


def test_places_are_those_of_a_loop() -> None:
    found = places(LOSSES)
    assert found[0] == -1
    assert [PLACES[i] for i in found[1:]] == [
        place_by_the_book(token) for token in range(1, len(IDS))
    ]
    assert set(found.tolist()) == {-1, 0, 1, 2, 3}


def test_sums_are_those_of_a_loop() -> None:
    edges = frequency_edges(COUNTS)
    assert edges == [0, 1, 10, 100, 1000]
    sums: dict[tuple[str, int], list[float]] = {}
    for token in range(1, len(IDS)):
        first = max(edge for edge in edges if edge <= COUNTS[IDS[token]])
        sums.setdefault((place_by_the_book(token), first), []).append(float(LOSSES.nats_N[token]))
    cells = by_occurrence(LOSSES, places(LOSSES), COUNTS, edges)
    assert {(cell.place, cell.first): cell.tokens for cell in cells} == {
        key: len(x) for key, x in sums.items()
    }
    assert {(cell.place, cell.first): cell.nats for cell in cells} == pytest.approx(
        {k: sum(x) for k, x in sums.items()}
    )
    assert {cell.first: cell.last for cell in cells} == {0: 0, 1: 9, 10: 99, 100: 999, 1000: None}


@pytest.mark.parametrize(("name", "value"), [("same_length", True), ("ext_len", 4)])
def test_a_context_of_another_kind_is_refused(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"--{name} {value}: what a token sees"):
        places(replace(LOSSES, context={**CONTEXT, name: value}))
    with pytest.raises(UsageError, match="--reset document"):
        places(replace(LOSSES, how={"reset": "document"}))
