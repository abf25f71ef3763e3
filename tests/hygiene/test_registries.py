"""Encodings, attention rules and memories: what they declare is what they read, and they have laws, an equation and
their rows on the pages about them. Every flag has a test."""

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.cli.test_flags import CLASSES, fields_of
from tests.equations.test_encodings import EQUATIONS
from txl import Context, ModelConfig, TransformerXL
from txl.attention_rules import ATTENTION_RULES
from txl.memory import MEMORIES
from txl.positions import POSITION_ENCODINGS
from txl.registry import ALL_PARTS, Registry, default_of, readers, reads

ROOT = Path(__file__).parents[2]
COMMON = {"n_token", "n_layer", "n_head", "n_key_head", "d_head", "d_model", "d_inner"}
COMMON |= {"position", "attention"}


class Watched(SimpleNamespace):
    """A configuration that knows what it was asked for."""

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__"):
            object.__getattribute__(self, "__dict__")["asked"].add(name)
        return super().__getattribute__(name)

    def settings(self, cls: type) -> Any:
        """Those of a part, which are asked for as fields are."""
        values = {f.name: self.own.get(f.name, default_of(f)) for f in fields(cls)}
        asked = object.__getattribute__(self, "asked")
        return Watched(**values, asked=asked)


def asked_by(build: Callable[[Any], object], **values: Any) -> set[str]:
    """The fields of the configuration that are read when a part is built, besides the common ones."""
    asked: set[str] = set()
    config = ModelConfig(n_token=5, n_position=7, d_head=8, **values)
    build(Watched(**vars(config), n_key_head=config.n_key_head, asked=asked))
    return asked - COMMON - {"settings", "own"}


GENERAL = "untie_r attn_impl attn_keep_mib compressed_len lookup_len redraw_interval".split()
"""Settings of all models or trainings that only some parts read."""
SCALINGS = (
    {"rope_scaling": "none"},
    {"rope_scaling": "yarn"},
    {"rope_scaling": "longrope", "rope_short": (1.0,) * 4, "rope_long": (2.0,) * 4},
)
"""Of rotary positions, which read other settings with each."""


@pytest.mark.parametrize("name", POSITION_ENCODINGS)
def test_an_encoding_reads_and_says_what_it_declares(name: str) -> None:
    cls = POSITION_ENCODINGS[name]
    usable = "softmax" if cls.needs_scores() else "softmax, performer, lsh"
    assert f"\n    Works with: {usable}.\n    Cost: " in (cls.__doc__ or "")
    assert ("untie_r" in cls.reads()) == bool(cls.shared)
    if name == "floater":
        pytest.importorskip("torchdiffeq")
    asked: set[str] = set()
    for scaling in SCALINGS:
        asked |= asked_by(cls, position=name, **scaling)
    assert asked - {"untie_r"} == reads(cls)


def test_a_rule_reads_what_it_declares() -> None:
    for name, cls in ATTENTION_RULES.items():
        assert asked_by(cls, attention=name, position="none") == reads(cls)
    assert set(readers("redraw_interval")["attention"]) == {"performer", "lsh"}


def test_a_memory_reads_what_it_declares_and_says_where_it_is_from() -> None:
    for name, cls in MEMORIES.items():
        asked: set[str] = set()
        for layer in range(2):
            asked |= asked_by(
                lambda c, cls=cls, i=layer: cls.of_layer(c, i)(c), memory=name, n_layer=2
            )
        assert asked - {"recurrence"} == reads(cls)
        traits = cls.traits
        assert (name in readers("compressed_len")["memory"]) == traits.compresses
        assert (name in readers("lookup_len")["memory"]) == traits.looks_up
        assert re.search(r" et al\. 20\d\d", cls.__doc__ or "")


@pytest.mark.parametrize("registry", ALL_PARTS, ids=lambda registry: registry.flag)
def test_the_line_of_a_part_names_what_it_reads(registry: Registry) -> None:
    """By which a setting finds its part, and others are not imported."""
    for name, part in registry.items():
        assert set(registry.own(name)) == reads(part), name
        also = {setting for setting in GENERAL if name in registry.readers(setting)}
        asked = part.reads() if hasattr(part, "reads") else reads(part)
        if hasattr(part, "redraw"):
            asked |= {"redraw_interval"}
        assert also == asked - reads(part), name


def test_ways_to_compute_are_those_of_relative_attention() -> None:
    """Encodings that read `attn_impl` are those for which the softmax asks `txl.ops.rel_attention`."""
    asked = []
    for name in set(POSITION_ENCODINGS) - {"floater"}:
        sizes = {
            "n_layer": 1,
            "n_head": 1,
            "d_head": 4,
            "d_model": 4,
            "d_inner": 4,
            "n_position": 4,
        }
        model = TransformerXL(ModelConfig(n_token=5, position=name, **sizes))
        model.layers[0].attn.rule.impl = "no such way"
        try:
            model(torch.zeros(1, 2, dtype=torch.long), None, Context())
        except KeyError:
            asked.append(name)
    assert set(asked) == set(readers("attn_impl")["position"])


def test_every_one_has_an_equation() -> None:
    """An encoding in the table, a rule in a file of its own, where loops are held against what is computed."""
    assert {position for position, _ in EQUATIONS} == set(POSITION_ENCODINGS)  # with softmax
    for name in set(ATTENTION_RULES) - {"softmax"}:
        text = (ROOT / "tests" / "equations" / f"test_{name}.py").read_text(encoding="utf-8")
        assert "def test_the_rule_is_the_formula(" in text
    # their equation is that of every position encoding, over a memory and without
    of_the_paper = {"fifo", "none"}
    folder = ROOT / "tests" / "equations"
    assert set(MEMORIES) - of_the_paper <= {
        path.stem.removeprefix("test_") for path in folder.glob("test_*.py")
    }


# pages


def tables(page: str, heading: str) -> list[list[list[list[str]]]]:
    """The tables of a page whose first column has this heading: of each cell of each row the words in backquotes."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found = re.findall(rf"^\| `{heading}` \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    cells = [[row.strip("|").split("|") for row in rows.splitlines()] for rows in found]
    return [[[re.findall(r"`([^`]*)`", cell) for cell in row] for row in table] for table in cells]


def test_every_one_has_its_rows() -> None:
    of_encodings = [
        [name for first, *_ in rows for name in first]
        for rows in tables("encodings.md", "--position")
    ]
    assert list(map(sorted, of_encodings)) == [sorted(POSITION_ENCODINGS)] * 4
    assert [[first for (first,), *_ in rows] for rows in tables("attention.md", "--attention")] == [
        list(ATTENTION_RULES)
    ]
    page = (ROOT / "docs" / "attention.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| law \| (.*) \|$", page, re.MULTILINE) == [" | ".join(ATTENTION_RULES)]
    listed, works = tables("memory.md", "--memory")
    assert [first for (first,), *_ in listed] == list(MEMORIES)
    only = [
        (name, setting, allowed)
        for name, cls in MEMORIES.items()
        for setting, allowed in cls.traits.works_with.items()
    ]
    said = [
        (name, flag, *allowed)
        for names, flags, allowed in works
        for name in names
        for flag in flags
    ]
    assert sorted(said) == sorted(
        (name, f"--{of}", *map(str, allowed)) for name, of, allowed in only
    )


def test_the_page_of_encodings_says_which_rules_work_and_who_reads_a_flag() -> None:
    lines = (ROOT / "docs" / "encodings.md").read_text().splitlines()
    cells = [line.strip("|").split("|") for line in lines if line[:3] == "| `"]
    rows = [
        (set(re.findall(r"`(\S+)`", first)), [cell.strip() for cell in rest])
        for first, *rest in cells
    ]
    said = [
        (name, *rest) for names, rest in rows for name in names if set(rest) <= {"yes", "refused"}
    ]
    elsewhere = {
        name: "refused" if cls.needs_scores() else "yes" for name, cls in POSITION_ENCODINGS.items()
    }
    assert sorted(said) == sorted((name, "yes", other, other) for name, other in elsewhere.items())
    who = {flag: re.findall(r"`(\w+)`", rest[0]) for (flag, *_), rest in rows if len(rest) == 1}
    flags = set().union(*(cls.reads() for cls in POSITION_ENCODINGS.values())) - {"count_back"}
    assert {flag: set(names) for flag, names in who.items()} == {
        f"--{n}": set(readers(n)["position"]) for n in flags
    }


# flags


def used(text: str) -> set[str]:
    """Flags that a text types, and fields of configurations that it sets."""
    found = {
        name
        for names in re.findall(r'--(\w+)|"(\w+)":|\b(\w+)=(?!=)', text)
        for name in names
        if name
    }
    return found | {name.removeprefix("no_") for name in found}


def test_every_flag_is_used_by_a_test_that_has_it_do_something() -> None:
    only_read = {"test_flags.py", "test_bad_input.py"}  # or refused
    files = [path for path in (ROOT / "tests").rglob("*.py") if path.name not in only_read]
    names = used("\n".join(path.read_text(encoding="utf-8") for path in files))
    configurations = {cls for classes in CLASSES.values() for cls in classes}
    settings = [f for cls in configurations for f in fields_of(cls).values()]
    flags = {f.name for f in settings if f.metadata.get("flag", True)}
    assert flags - names == set()
    assert used("--lr 3 old_lr=4 no == 3 dict(clip=3)") == {"lr", "old_lr", "clip"}


@pytest.mark.parametrize("program", CLASSES)
def test_every_flag_is_named_on_a_page(program: str) -> None:
    """As --flag, or as --no_flag where it is a switch."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    named = set(re.findall(r"--(\w+)", "\n".join(page.read_text("utf-8") for page in pages)))
    fields_of_program = [f for cls in CLASSES[program] for f in fields_of(cls).values()]
    flags = {f.name for f in fields_of_program if f.metadata.get("flag", True)}
    assert len(flags) > 10
    assert sorted(flag for flag in flags if not {flag, f"no_{flag}"} & named) == []
