"""What encodings and rules declare that they read is what they read, and what is written of them says so."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from txl import Context, ModelConfig, TransformerXL
from txl.attention_rules import ATTENTION_RULES
from txl.model.settings import readers
from txl.positions import POSITION_ENCODINGS

ROOT = Path(__file__).parents[2]
COMMON = {"n_token", "n_layer", "n_head", "d_head", "d_model", "d_inner", "position", "attention"}


class Watched(SimpleNamespace):
    """A configuration that knows what it was asked for."""

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__"):
            object.__getattribute__(self, "__dict__")["asked"].add(name)
        return super().__getattribute__(name)


def asked_by(cls: type, **values: Any) -> set[str]:
    """The fields of the configuration that a class reads when it is built, besides the common ones."""
    asked: set[str] = set()
    cls(Watched(**vars(ModelConfig(n_token=5, n_position=7, d_head=8, **values)), asked=asked))
    return asked - COMMON


@pytest.mark.parametrize("name", POSITION_ENCODINGS)
def test_an_encoding_reads_what_it_declares(name: str) -> None:
    if name == "floater":
        pytest.importorskip("torchdiffeq")
    cls = POSITION_ENCODINGS[name]
    assert asked_by(cls, position=name) - {"untie_r"} == set(cls.settings)
    assert ("untie_r" in cls.reads()) == bool(cls.shared)


@pytest.mark.parametrize("name", ATTENTION_RULES)
def test_a_rule_reads_what_it_declares(name: str) -> None:
    cls = ATTENTION_RULES[name]
    assert asked_by(cls, attention=name, position="none") == set(cls.settings) - {"redraw_interval"}
    assert ("redraw_interval" in cls.settings) == hasattr(cls, "redraw")


def test_ways_to_compute_are_those_of_relative_attention() -> None:
    """Encodings that read `attn_impl` are those for which the softmax asks `txl.ops.rel_attention`."""
    asked = []
    for name in set(POSITION_ENCODINGS) - {"floater"}:
        sizes = {"n_layer": 1, "n_head": 1, "d_head": 4, "d_model": 4, "d_inner": 4, "n_position": 4}
        model = TransformerXL(ModelConfig(n_token=5, position=name, **sizes))
        model.layers[0].attn.rule.impl = "no such way"
        try:
            model(torch.zeros(1, 2, dtype=torch.long), None, Context())
        except KeyError:
            asked.append(name)
    assert set(asked) == set(readers("attn_impl").position)


@pytest.mark.parametrize("name", POSITION_ENCODINGS)
def test_a_docstring_says_which_rules_work_and_what_it_costs(name: str) -> None:
    cls = POSITION_ENCODINGS[name]
    usable = "softmax" if cls.needs_scores() else "softmax, performer, lsh"
    assert f"\n    Works with: {usable}.\n    Cost: " in (cls.__doc__ or "")


def rows() -> list[tuple[set[str], list[str]]]:
    """Rows of docs/encodings.md that begin with names in backquotes: the names, and the other cells."""
    cells = [
        line.strip("|").split("|")
        for line in (ROOT / "docs" / "encodings.md").read_text().splitlines()
        if line[:3] == "| `"
    ]
    return [(set(re.findall(r"`(\S+)`", first)), [cell.strip() for cell in rest]) for first, *rest in cells]


def test_the_documentation_says_which_rules_work() -> None:
    said = [(name, *rest) for names, rest in rows() for name in names if set(rest) <= {"yes", "refused"}]
    elsewhere = {name: "refused" if cls.needs_scores() else "yes" for name, cls in POSITION_ENCODINGS.items()}
    assert sorted(said) == sorted((name, "yes", other, other) for name, other in elsewhere.items())


def test_the_documentation_says_who_reads_a_flag() -> None:
    said = {flag: re.findall(r"`(\w+)`", rest[0]) for (flag, *_), rest in rows() if len(rest) == 1}
    flags = set().union(*(cls.reads() for cls in POSITION_ENCODINGS.values())) - {"count_back"}
    assert {flag: set(who) for flag, who in said.items()} == {f"--{n}": set(readers(n).position) for n in flags}
