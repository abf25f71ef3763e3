"""Properties of streams for training, for any text and any shape."""

import itertools
from collections import Counter

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from txl.data_utils.sentence_stream import SentenceStream
from txl.data_utils.stream import SegmentStream, TrainingSegment

SHAPES = st.fixed_dictionaries(
    {"batch_size": st.integers(1, 5), "tgt_len": st.integers(1, 9), "ext_len": st.integers(0, 4)}
)
BOOLEANS = st.booleans()
EOS = 0


def targets(segments: list[TrainingSegment]) -> Counter[int]:
    return Counter(itertools.chain(*(s.target_BT.flatten().tolist() for s in segments)))


def same(some: list[TrainingSegment], others: list[TrainingSegment]) -> bool:
    pairs = zip(some, others, strict=True)
    return all(torch.equal(a, b) for one, two in pairs for a, b in zip(one, two, strict=True) if a is not None)


@settings(max_examples=25)
@given(n=st.integers(15, 120), shape=SHAPES, roll=BOOLEANS, varlen=BOOLEANS, first=st.integers(0, 30))
def test_every_token_of_a_stream_but_its_first_is_predicted_once(
    n: int, shape: dict[str, int], roll: bool, varlen: bool, first: int
) -> None:
    """Token i is i. A roll turns each stream in itself; with varlen a last token may be left over."""
    batch_size = shape["batch_size"]
    stream = SegmentStream(np.arange(n), **shape, roll=roll, varlen=varlen, seed=5)
    whole = list(stream.epoch(2))
    found = targets(whole)
    expected = batch_size * (n // batch_size - 1)
    assert max(found.values()) == 1
    assert expected - batch_size * varlen <= len(found) <= expected
    assert max(found) < n // batch_size * batch_size
    assert same(list(stream.epoch(2, first=first)), whole[first:])
    parts = [
        SegmentStream(np.arange(n), **shape, roll=roll, varlen=varlen, seed=5, columns=slice(b, b + 1))
        for b in range(batch_size)
    ]
    assert sum((targets(list(part.epoch(2))) for part in parts), Counter()) == found


@settings(max_examples=25)
@given(
    lengths=st.lists(st.lists(st.integers(1, 7), min_size=8, max_size=14), min_size=1, max_size=3),
    shape=SHAPES,
    shuffle=BOOLEANS,
    first=st.integers(0, 12),
)
def test_every_token_of_sentences_is_predicted_once_but_those_left_at_the_end_of_a_file(
    lengths: list[list[int]], shape: dict[str, int], shuffle: bool, first: int
) -> None:
    """Tokens are numbered; a sentence of n tokens is followed by a border, which is predicted too."""
    ids, files = [], []
    for n_token in lengths:
        files.append(len(ids))
        ids.append(EOS)
        for n in n_token:
            ids += [*range(len(ids), len(ids) + n), EOS]
    batch_size, tgt_len = shape["batch_size"], shape["tgt_len"]
    if min(sum(n + 1 for n in one) for one in lengths) < 2 * batch_size * (tgt_len + 8):
        batch_size = shape["batch_size"] = 1
    stream = SentenceStream(np.array(ids), files, eos_id=EOS, **shape, by_sentence=True, shuffle=shuffle, seed=5)
    whole = list(stream.epoch(2))
    found = targets(whole)
    words = {token: n for token, n in found.items() if token != EOS}
    assert max(words.values()) == 1
    assert found[EOS] <= sum(map(len, lengths))
    n_all = sum(n + 1 for one in lengths for n in one)
    left = n_all - sum(found.values())
    assert 0 <= left < len(lengths) * batch_size * (tgt_len + 8)
    for segment in whole:
        new_BT = segment.input_BT[:, -tgt_len:]
        starts_BT = segment.since_BT[:, -tgt_len:] == 0  # type: ignore[index]
        assert torch.equal(starts_BT, new_BT == EOS)  # a sentence is predicted from the border before it
        follows_BT = (segment.target_BT == new_BT + 1) | (segment.target_BT == EOS) | starts_BT
        assert follows_BT.all()
    assert same(list(stream.epoch(2, first=first)), whole[first:])
    parts = [
        SentenceStream(np.array(ids), files, eos_id=EOS, **shape, shuffle=shuffle, seed=5, columns=slice(b, b + 1))
        for b in range(batch_size)
    ]
    assert sum((targets(list(part.epoch(2))) for part in parts), Counter()) == found
