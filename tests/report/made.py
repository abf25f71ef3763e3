"""Reports of made-up figures."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from txl.evaluation.gain import Gain, Interval
from txl.report.record import (
    FORMAT,
    Curve,
    Distances,
    Figures,
    Looked,
    Map,
    Origin,
    Report,
    Said,
    Shown,
)

LENGTHS = [0, 8, 32, 128, 256]
HOSTILE = [
    "<script>window.ran=1</script>",
    "</script><script>window.ran=2</script>",
    "<!--",
    "]]>",
    "&lt;b&gt;",
    "\"'`",
    " שלום",
    " עולם",
    " 😀",
    " \u202egnp.exe",
    " <eos>",
    "a\nb",
    " " * 10_000,
    "<img src=x onerror=window.ran=3>",
    "{{ 7*7 }}{% endraw %}",
    "\u2028",
    "\x00",
    "$&",
    "x" * 3000,
    "javascript:alert(1)",
    "",
    "\n",
    "</title></style></textarea>",
]


def words_of(n: int) -> list[str]:
    """Pieces with a line end now and then."""
    return ["\n" if i % 23 == 22 else f" word{i % 97}" for i in range(n)]


def gain_of(
    longer: int, in_all: float | None, further: float | None, *, spread: float = 0.01
) -> Gain:
    """A gain with intervals of this half width."""

    def around(mean: float | None) -> Interval | None:
        return None if mean is None else Interval(mean, mean - spread, mean + spread)

    return Gain(
        split="test",
        tgt_len=32,
        added="",
        shorter=0,
        longer=longer,
        trained=128,
        unit="word",
        blocks="67 stretches of 256 tokens",
        in_all=around(in_all),
        by_seeing_further=around(further),
    )


def figures(mem_len: int, borders: str) -> Figures:
    level = 4.0 - 0.02 * math.log2(mem_len + 1)
    if borders == "cut":
        level += 0.15 * 2 ** (-mem_len / 8)
    return Figures(
        mem_len=mem_len,
        borders=borders,
        nats_per_token=level,
        perplexity=math.exp(level),
        word_perplexity=math.exp(level),
        bits_per_character=level / 3,
    )


def looked_of(n_token: int, heads: Sequence[Map], *, seed: int = 0) -> Looked:
    """Attention to random keys, as much as a real one has."""
    dice = np.random.default_rng(seed)
    count_PN = dice.integers(0, 6, (len(heads), n_token))
    n_key = int(count_PN.sum())
    return Looked(
        mem_len=128,
        n_token=n_token,
        maps=list(heads),
        count_PN=count_PN.tolist(),
        back_K=dice.integers(1, 160, n_key).tolist(),
        share_K=dice.integers(8, 120, n_key).tolist(),
        beyond_P=dice.random(len(heads)).round(4).tolist(),
    )


def maps_of(n_layer: int, n_head: int) -> list[Map]:
    maps = [Map(layer=None, head=None)]
    maps += [Map(layer=layer, head=None) for layer in range(n_layer)]
    return maps + [
        Map(layer=layer, head=head) for layer in range(n_layer) for head in range(n_head)
    ]


def shown_of(
    pieces: Sequence[str], *, attended: int = 300, seed: int = 0, maps: Sequence[Map] = ()
) -> Shown:
    dice = np.random.default_rng(seed)
    base_N = dice.exponential(3, len(pieces))
    nats_MN = []
    for length in LENGTHS:
        nats_N = np.abs(base_N + dice.normal(0, 0.5, len(pieces)) - 0.02 * math.log2(length + 1))
        nats_MN.append(np.minimum(nats_N, 65).round(3).tolist())
    looked = None
    if attended:
        looked = looked_of(min(attended, len(pieces)), maps or maps_of(2, 2), seed=seed)
    return Shown(
        first=1,
        pieces=list(pieces),
        before=[f" before{i}" for i in range(20)],
        mem_len_M=LENGTHS,
        nats_MN=nats_MN,
        looked=looked,
    )


def report_of(pieces: Sequence[str] | int = 200, **changed: Any) -> Report:
    """A report that shows these pieces, or so many words."""
    if isinstance(pieces, int):
        pieces = words_of(pieces)
    seed = changed.pop("seed", 0)
    attended = changed.pop("attended", 300)
    maps = changed.pop("maps", ())
    report = Report(
        format=FORMAT,
        name="demo",
        checkpoint="step_00002500",
        weights="0123456789abcdef" * 4,
        dtype="float32",
        split="test",
        text="a" * 64,
        tokenizer="b" * 64,
        notes=["5.10% of the tokens are <unk>"],
        n_token=17_325,
        tgt_len=32,
        trained_tgt_len=32,
        trained_mem_len=128,
        rows=[figures(length, borders) for borders in ("cut", "aside") for length in LENGTHS],
        gains=[
            gain_of(8, 0.13, 0.012),
            gain_of(32, 0.15, 0.022),
            gain_of(128, 0.154, 0.025),
            gain_of(256, 0.15, 0.03),
        ],
        compared=[0, 128],
        said=[
            Said(first=1, last=32, share=0.4, saved=Interval(-0.01, -0.02, -0.002)),
            Said(first=33, last=160, share=0.2, saved=Interval(0.11, 0.09, 0.13)),
            Said(first=161, last=None, share=0.3, saved=None),
            Said(first=0, last=0, share=0.1, saved=Interval(0.01, -0.02, 0.04)),
        ],
        distances=Distances(
            mem_len=128,
            first_K=[0, 1, 2, 4, 16, 64],
            last_K=[0, 1, 3, 15, 63, 159],
            share_LNK=[[[0.1, 0.1, 0.2, 0.2, 0.2, 0.2]] * 2, [[0.5, 0.1, 0.1, 0.1, 0.1, 0.1]] * 2],
        ),
        curve=Curve(train=[[100.0, 5.0], [200.0, 4.2]], valid=[[100.0, 4.6], [200.0, 4.1]]),
        shown=shown_of(pieces, seed=seed, attended=attended, maps=maps),
        sample="\nThis module provides more.",
        origin=Origin(
            command=["…/train.py", "--n_layer", "2"],
            versions={"txl": "0.2.0", "torch": "2.13.0", "processor": "a processor"},
            parameters=1_559_108,
            settings={"model n_layer": "2", "train lr": "0.001"},
        ),
    )
    return dataclasses.replace(report, **changed)


def hostile_everywhere() -> Report:
    """A report whose every text is hostile."""
    bad = "".join(HOSTILE)

    def spoilt(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            changed = {f.name: spoilt(getattr(value, f.name)) for f in dataclasses.fields(value)}
            return dataclasses.replace(value, **changed)
        if isinstance(value, list):
            return [spoilt(one) for one in value]
        if isinstance(value, dict):
            return {f"{name}{bad}": spoilt(one) for name, one in value.items()}
        return f"{value}{bad}" if isinstance(value, str) else value

    report = report_of((HOSTILE + words_of(20)) * 5)
    spoiled = spoilt(report)
    rows = [
        dataclasses.replace(row, borders=old.borders)
        for row, old in zip(spoiled.rows, report.rows, strict=True)
    ]
    return dataclasses.replace(spoiled, rows=rows)
