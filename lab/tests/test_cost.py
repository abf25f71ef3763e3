"""What a disturbed memory costs, in words."""

import pytest

from lab.measures.cost import Cost
from txl.evaluation.gain import Interval


@pytest.mark.parametrize(
    ("nats", "words"),
    [
        (Interval(0.02, 0.01, 0.03), "costs 0.020 nats a token (0.010 to 0.030)"),
        (Interval(-0.02, -0.03, -0.01), "saves 0.020 nats a token (0.010 to 0.030)"),
        (Interval(0.0002, 0.0001, 0.0009), "a cost is not shown (0.000 to 0.001 nats a token)"),
        (Interval(0.0002, -0.0001, 0.0009), "a cost is not shown (0.000 to 0.001 nats a token)"),
        (None, "too short to tell, 3 documents; 20 are needed"),
    ],
)
def test_it_says_what_is_shown(nats: Interval | None, words: str) -> None:
    assert Cost("here", "3 documents", nats).sentence() == f"here: {words}"
