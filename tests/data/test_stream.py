"""Streams: what is read, and what counts."""

import functools
import itertools
import tracemalloc
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from txl.data_utils.errors import DataError
from txl.data_utils.lm1b import SentenceStream
from txl.data_utils.segments import SegmentStream, TrainingSegment, scoring_stream


def test_streams_are_no_copy_of_the_ids() -> None:
    ids = np.arange(50)
    assert np.shares_memory(SegmentStream(ids, batch_size=3, tgt_len=7).streams, ids)


def test_more_streams_than_a_text_has_or_are_faster_are_not_made() -> None:
    with pytest.raises(DataError, match=r"--batch_size 6: the text of 10 tokens.*at most 5"):
        SegmentStream(np.arange(10), batch_size=6, tgt_len=7)
    assert len(list(SegmentStream(np.arange(10), batch_size=5, tgt_len=7))) == 1
    with pytest.raises(DataError, match="nothing to predict"):
        scoring_stream(np.arange(1), batch_size=1, tgt_len=4)
    stream = scoring_stream(np.arange(50), batch_size=10, tgt_len=5, n_warmup=40)
    assert (len(stream.first_B), len(stream)) == (1, 10)


def rolled(epoch: int) -> np.ndarray:
    """The streams of an epoch: one segment holds all of them."""
    stream = SegmentStream(np.arange(60), batch_size=4, tgt_len=99, roll=True, seed=3)
    (segment,) = stream.epoch(epoch)
    return np.concatenate([segment.input_BT, segment.target_BT[:, -1:]], axis=1)


def test_every_epoch_turns_each_stream_by_a_number_of_its_own() -> None:
    begins = []
    for epoch in (1, 2, 3):
        streams = rolled(epoch)
        assert np.array_equal(np.sort(streams, axis=1), np.arange(60).reshape(4, 15))
        assert set(np.diff(streams, axis=1).flatten()) == {1, -14}
        begins.append(tuple(streams[:, 0] % 15))
        assert len(set(begins[-1])) > 1
    assert len(set(begins)) == 3
    assert np.array_equal(rolled(2), rolled(2))


def test_an_epoch_copies_the_tokens_of_one_segment_at_a_time() -> None:
    stream = SegmentStream(
        np.zeros(10**7, dtype=np.uint16), batch_size=4, tgt_len=99, ext_len=9, roll=True
    )
    next(stream.epoch(1))  # what is imported for the first time
    tracemalloc.start()
    try:
        next(stream.epoch(2))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10**5


LENGTHS = [2, 3, 8, 50, 101]
WARMUPS = [0, 1, 3, 40]


@pytest.mark.parametrize("n", LENGTHS)
def test_every_token_but_the_first_counts_once(n: int) -> None:
    for batch_size, tgt_len, n_warmup in itertools.product([1, 7, 200], [1, 4, 64], WARMUPS):
        stream = scoring_stream(
            np.arange(n), batch_size=batch_size, tgt_len=tgt_len, n_warmup=n_warmup
        )
        segments = list(stream)
        assert len(stream) == len(segments)
        # nothing is read again unasked
        assert all(s.input_BT.shape == s.target_BT.shape for s in segments)
        counted = torch.cat([s.target_BT[s.counted_BT] for s in segments])
        assert sorted(counted.tolist()) == list(range(1, n)), (batch_size, tgt_len, n_warmup)


@pytest.mark.parametrize("n_warmup", WARMUPS)
def test_what_counts_is_read_after_its_warmup(n_warmup: int) -> None:
    """Every counted token has n_warmup whole segments of the text before its own, or all of the text before it."""
    for n, batch_size in itertools.product(LENGTHS, (2, 5)):
        read = [0] * 200
        for segment in scoring_stream(
            np.arange(n), batch_size=batch_size, tgt_len=3, n_warmup=n_warmup
        ):
            for row in range(len(segment.input_BT)):
                counted = segment.counted_BT[row]
                if counted.any():
                    assert read[row] >= min(3 * n_warmup, int(segment.input_BT[row, 0]))
                    assert torch.equal(
                        segment.target_BT[row][counted],
                        segment.input_BT[row, -len(counted) :][counted] + 1,
                    )
                read[row] += 3


@pytest.mark.parametrize(("ext_len", "n_warmup"), [(1, 0), (3, 2), (9, 0), (9, 2)])
def test_re_read_tokens_stand_before_the_segment(ext_len: int, n_warmup: int) -> None:
    segments = list(
        scoring_stream(np.arange(40), batch_size=3, tgt_len=4, ext_len=ext_len, n_warmup=n_warmup)
    )
    for k, segment in enumerate(segments):
        extra = segment.input_BT.shape[1] - segment.target_BT.shape[1]
        assert extra == min(ext_len, 4 * k)
        rows = segment.counted_BT.any(dim=1)
        first = segment.input_BT[rows, 0]
        assert torch.equal(segment.target_BT[rows, 0], first + extra + 1)


@pytest.mark.parametrize("flags", [{}, {"ext_len": 4}, {"varlen": True, "roll": True}], ids=str)
def test_the_documents_of_each_stream(flags: dict[str, object]) -> None:
    """Token i is i: the segments say themselves where they are in the text."""
    starts = np.array([0, 5, 6, 31, 58])
    stream = SegmentStream(np.arange(120), batch_size=2, tgt_len=9, seed=3, starts=starts, **flags)  # type: ignore[arg-type]
    for segment in stream.epoch(2):
        assert segment.since_BT is not None
        for at, since in zip(
            segment.input_BT.flatten().tolist(), segment.since_BT.flatten().tolist(), strict=True
        ):
            begins = [*(starts[1:] - 1), 0, at // 60 * 60]  # of documents, and of the stream
            assert at - since == max(begin for begin in begins if begin <= at)


def test_columns_have_their_own_documents() -> None:
    starts = np.array([7, 70])
    make = functools.partial(
        SegmentStream, np.arange(120), batch_size=4, tgt_len=9, roll=True, starts=starts
    )
    whole, part = next(make().epoch(1)), next(make(columns=slice(1, 3)).epoch(1))
    assert whole.since_BT is not None
    assert part.since_BT is not None
    assert torch.equal(whole.since_BT[1:3], part.since_BT)
    assert next(SegmentStream(np.arange(30), batch_size=1, tgt_len=9).epoch(1)).since_BT is None


# any text and any shape

SHAPES = st.fixed_dictionaries(
    {"batch_size": st.integers(1, 5), "tgt_len": st.integers(1, 9), "ext_len": st.integers(0, 4)}
)
BOOLEANS = st.booleans()
EOS = 0


def targets(segments: list[TrainingSegment]) -> Counter[int]:
    return Counter(itertools.chain(*(s.target_BT.flatten().tolist() for s in segments)))


def same(some: list[TrainingSegment], others: list[TrainingSegment]) -> bool:
    pairs = zip(some, others, strict=True)
    return all(
        torch.equal(a, b)
        for one, two in pairs
        for a, b in zip(one, two, strict=True)
        if a is not None
    )


@settings(max_examples=25)
@given(
    n=st.integers(15, 120), shape=SHAPES, roll=BOOLEANS, varlen=BOOLEANS, first=st.integers(0, 30)
)
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
        SegmentStream(
            np.arange(n), **shape, roll=roll, varlen=varlen, seed=5, columns=slice(b, b + 1)
        )
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
    stream = SentenceStream(
        np.array(ids), files, eos_id=EOS, **shape, by_sentence=True, shuffle=shuffle, seed=5
    )
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
        # a sentence is predicted from the border before it
        assert torch.equal(starts_BT, new_BT == EOS)
        follows_BT = (segment.target_BT == new_BT + 1) | (segment.target_BT == EOS) | starts_BT
        assert follows_BT.all()
    assert same(list(stream.epoch(2, first=first)), whole[first:])
    parts = [
        SentenceStream(
            np.array(ids),
            files,
            eos_id=EOS,
            **shape,
            shuffle=shuffle,
            seed=5,
            columns=slice(b, b + 1),
        )
        for b in range(batch_size)
    ]
    assert sum((targets(list(part.epoch(2))) for part in parts), Counter()) == found
