"""A memory that is kept in a file: what a model has read of a text, and what is made of it later."""

import dataclasses
import hashlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import txl
from tests.cli.conftest import Here, change_weights, half_written
from txl.config import UsageError
from txl.generation.sampling import beam_search
from txl.language import kept_memory

BOOK = "bab bad baf\nded dif\nbab unread kud kul kun\nbab bad\n" * 4
MORE = "lob lod\nmib mid mif\n"


@pytest.fixture
def lm(here: Here) -> txl.LanguageModel:
    """In float64, so that rounding hides nothing."""
    lm = txl.load("run")
    lm.model.double()
    return lm


@pytest.fixture
def kept(here: Here) -> dict[str, Any]:
    """What the header of book.memory says, which has been read by the run."""
    Path("book.txt").write_text(BOOK)
    here("read book.txt --work_dir run --to book.memory")
    with safe_open("book.memory", "pt") as file:
        return json.loads(file.metadata()["txl memory"])


def between(lm: txl.LanguageModel, text: str, before: Any = None) -> txl.KeptMemory:
    """The memory after a text, which has been in a file."""
    lm.read(text, before).save("between.memory")
    return txl.load_memory("between.memory")


@pytest.mark.parametrize("mem_len", [8, 3, 200, 0])
def test_a_text_in_two_pieces_with_a_file_between_is_the_text_in_one(
    lm: txl.LanguageModel, mem_len: int
) -> None:
    lm = dataclasses.replace(lm, context=dataclasses.replace(lm.context, mem_len=mem_len))
    texts = lm.generate([BOOK + "bab", BOOK + "bad"], length=20, temperature=0)
    nats = lm.score(MORE, BOOK).nats
    lines = BOOK.splitlines(keepends=True)
    for cut in (1, 7, len(lines)):
        memory = between(lm, "".join(lines[:cut]))
        if lines[cut:]:
            memory = between(lm, "".join(lines[cut:]), memory)
        assert memory.n_token == 1 + len(lm.encode(BOOK))
        assert lm.score(MORE, memory=memory).nats == pytest.approx(nats, abs=1e-12)
        assert lm.score("mib mid mif\n", "lob lod\n", memory=memory).nats == pytest.approx(
            nats[3:], abs=1e-12
        )
        assert lm.loglikelihood("", MORE, memory=memory) == pytest.approx(-sum(nats), abs=1e-12)
        assert lm.generate(["bab", "bad"], memory=memory, length=20, temperature=0) == texts
        assert "".join(lm.stream("bad", memory=memory, length=20, temperature=0)) == texts[1]


@pytest.mark.parametrize(
    "how",
    [
        {"lines": 2},
        {"num_beams": 3},
        {"num_beams": 3, "lines": 1},
        {"no_repeat_ngram_size": 2},
        {"finish_line": True},
    ],
)
def test_a_text_that_goes_on_has_its_last_token_and_line(
    lm: txl.LanguageModel, how: dict[str, Any]
) -> None:
    """An empty prompt goes on with the text, in the middle of a line too."""
    how = {"length": 12, "temperature": 0} | how
    if "num_beams" in how or "finish_line" in how:
        del how["temperature"]
    if how.pop("finish_line", False):
        how |= {"lines": 1, "seed": 3}
    for text in (BOOK, BOOK + "lob lod"):
        memory = between(lm, text)
        if "no_repeat_ngram_size" not in how:  # which counts the prompt, not what is remembered
            assert lm.generate("", memory=memory, **how) == lm.generate(text, **how)
        whole = lm.generate(text + " lob mib", **how)
        if "no_repeat_ngram_size" not in how:
            assert lm.generate("lob mib", memory=memory, **how) == whole


def test_penalties_count_nothing_that_is_remembered(lm: txl.LanguageModel) -> None:
    """Neither its last token, which is read with what follows."""
    memory = between(lm, BOOK + "lob")
    (last,) = lm.encode("lob")
    once = {"no_repeat_ngram_size": 1}
    texts = lm.generate([""] * 200, memory=memory, length=1, seed=1, **once)
    assert any("lob" in text for text in texts)
    found = beam_search(
        lm.model,
        [last],
        memory.begun.context_for(2),
        num_beams=len(lm.tokenizer),
        length=1,
        begun=memory.begun,
        **once,
    )
    assert (last,) in [one.ids for one in found]


def test_a_file_says_what_it_is_of(kept: dict[str, Any]) -> None:
    memory, lm = txl.load_memory("book.memory"), txl.load("run")
    assert kept["format"] == 1
    assert memory.texts == (hashlib.sha256(BOOK.encode()).hexdigest(),)
    assert kept["texts"] == list(memory.texts)
    assert memory.context == lm.context
    assert (memory.name, memory.n_token) == ("book.memory", 1 + len(lm.encode(BOOK)))
    assert len(repr(memory)) < 1000
    assert "memory.0" in load_file("book.memory")
    before = torch.get_rng_state()
    assert memory.reader == lm.read(BOOK).reader
    assert torch.equal(before, torch.get_rng_state())


def test_programs_do_what_the_library_does(here: Here, kept: dict[str, Any]) -> None:
    Path("more.txt").write_text(MORE)
    memory, lm = txl.load_memory("book.memory"), txl.load("run")
    row = here.row("score more.txt --work_dir run --memory_file book.memory")
    assert row["nats"] == pytest.approx(lm.score(MORE, memory=memory).total_nats, rel=1e-6)
    assert row["nats"] == pytest.approx(lm.score(MORE, BOOK).total_nats, rel=1e-5)
    after = here.row("score more.txt --work_dir run --context book.txt --memory_file book.memory")
    assert after["nats"] == pytest.approx(lm.score(MORE, BOOK, memory=memory).total_nats, rel=1e-5)
    result = here.result("score more.txt --work_dir run --each line --memory_file book.memory")
    alone = [lm.score(line + "\n", memory=memory).total_nats for line in MORE.splitlines()]
    assert [one["nats"] for one in result["each"]] == pytest.approx(alone, rel=1e-5)
    assert result["memory_file"] == "book.memory"
    out = here("generate --memory_file book.memory --prompt bad --length 9 --seed 3").out
    assert out == "bad" + lm.generate("bad", memory=memory, length=9, seed=3) + "\n"
    said = here("read more.txt --work_dir run --memory_file book.memory --to both.memory").out
    assert f"{memory.n_token + len(lm.encode(MORE))} tokens read in all" in said
    both = txl.load_memory("both.memory")
    assert both.texts == (*memory.texts, hashlib.sha256(MORE.encode()).hexdigest())
    torch.testing.assert_close(both.begun.memory.named(), lm.read(BOOK + MORE).begun.memory.named())


def test_turns_go_on_with_it(
    here: Here, kept: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"bad\n\n")
    os.close(writing)
    with os.fdopen(reading) as turns:
        monkeypatch.setattr("sys.stdin", turns)
        out = here(
            "generate --memory_file book.memory --interactive --length 4 --temperature 0"
        ).out
    lm = txl.load("run")
    longer = lm.generate("bad", memory=txl.load_memory("book.memory"), length=8, temperature=0)
    assert "".join(out.splitlines()).replace(" ", "") == longer.replace(" ", "").replace("\n", "")


def test_lengths_are_those_of_the_reading(here: Here) -> None:
    Path("book.txt").write_text(BOOK)
    here("read book.txt --work_dir run --to book.memory --mem_len 5 --tgt_len 3")
    memory = txl.load_memory("book.memory")
    assert (memory.context.mem_len, memory.context.tgt_len) == (5, 3)
    lm = txl.load("run")
    own = dataclasses.replace(lm, context=memory.context)
    assert lm.score(MORE, memory=memory).nats == own.score(MORE, memory=memory).nats
    assert lm.score(MORE, memory=memory).nats == pytest.approx(own.score(MORE, BOOK).nats, rel=1e-4)
    assert lm.read(MORE, memory).context == memory.context


def test_what_was_read_without_a_length_of_the_training_goes_on(here: Here) -> None:
    """The memory works with its own lengths, not with those of the training."""
    here("train --same_length --max_step 1")
    Path("book.txt").write_text(BOOK)
    model = "--work_dir new --memory sinks"
    here(f"read book.txt {model} --no_same_length --to book.memory")
    written = here(f"generate {model} --memory_file book.memory --prompt bab --length 5 --seed 3")
    lm = txl.load("new", memory="sinks")
    memory = txl.load_memory("book.memory")
    assert not memory.context.same_length
    assert written.out == "bab" + lm.generate("bab", memory=memory, length=5, seed=3) + "\n"
    here(f"read book.txt {model} --memory_file book.memory --to more.memory")
    score = here.row(f"score book.txt {model} --memory_file book.memory")
    assert score["nats"] == pytest.approx(lm.score(BOOK, memory=memory).total_nats)


# what is refused


def test_the_memory_of_another_model_is_refused(
    here: Here, kept: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = txl.load_memory("book.memory")
    said = "book.memory: was read by another model, or by this one with other weights"
    lm = txl.load("run")
    with torch.no_grad():
        lm.model.layers[1].attn.o_net.weight[0, 0] += 1e-3
    for use in (
        lambda: lm.generate("", memory=memory),
        lambda: lm.score("bab", memory=memory),
        lambda: lm.read("bab", memory),
    ):
        with pytest.raises(UsageError, match=said):
            use()
    other = txl.load("run")
    monkeypatch.setattr(other.tokenizer, "fingerprint", lambda: "0" * 64)
    with pytest.raises(UsageError, match="was read with another vocabulary"):
        other.generate("", memory=memory)
    with pytest.raises(
        UsageError, match=r"in float32, and the model computes in bfloat16; give --dtype"
    ):
        txl.load("run", dtype="bfloat16").generate("", memory=memory)
    change_weights(Path("run"), lambda weight: 2 * weight)
    for line in (
        "generate --memory_file book.memory",
        "score book.txt --work_dir run --memory_file book.memory",
        "read book.txt --work_dir run --to x.memory --memory_file book.memory",
    ):
        assert said in here.refused(line)
    assert not Path("x.memory").exists()


def test_weights_that_did_not_change_are_counted_once(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = txl.load("run")
    first = kept_memory.digest_of_model(lm.model)
    with monkeypatch.context() as patch:
        patch.setattr(type(lm.model), "state_dict", lambda self: {})
        assert kept_memory.digest_of_model(lm.model) == first
    with torch.no_grad():
        next(lm.model.parameters()).add_(1)
    assert kept_memory.digest_of_model(lm.model) != first


def test_a_setting_of_the_memory_makes_another_model_and_a_default_does_not(here: Here) -> None:
    config = txl.ModelConfig(
        n_token=9, n_layer=1, n_head=1, d_head=2, d_model=4, d_inner=4, memory="infini"
    )
    torch.manual_seed(1)
    one = txl.TransformerXL(config)
    digests = set()
    for changed in (
        config,
        dataclasses.replace(config, infini_update="delta"),
        dataclasses.replace(config, pre_lnorm=True),
    ):
        other = txl.TransformerXL(changed)
        other.load_state_dict(one.state_dict())
        digests.add(kept_memory.digest_of_model(other))
    assert len(digests) == 3
    assert kept_memory.digest_of_model(one) in digests


def test_a_model_from_before_a_setting_has_the_digest_that_it_had() -> None:
    shape = {"n_token": 9, "n_layer": 1, "n_head": 1, "d_head": 2, "d_model": 4, "d_inner": 4}
    found = []
    for tokens_of in ("hidden", "normed"):
        config = txl.ModelConfig(**shape, memory="recurrent_tokens", tokens_of=tokens_of)
        found.append(kept_memory._settings(config))
    before, now = found
    assert now == before | {"tokens_of": "normed"}
    assert "tokens_of" not in before


Damage = Callable[[dict[str, torch.Tensor], dict[str, Any]], object]


def context_with(**changes: Any) -> Damage:
    def change(tensors: dict[str, torch.Tensor], said: dict[str, Any]) -> None:
        said["context"] |= changes

    return change


def nothing_finite(tensors: dict[str, torch.Tensor], said: dict[str, Any]) -> None:
    tensors["memory.1"][0, 0, 0] = torch.nan


DAMAGED: dict[str, tuple[Damage, str]] = {
    "nan": (nothing_finite, "not finite"),
    "a newer one": (lambda t, said: said.update(format=2), "is of another format"),
    "no format": (lambda t, said: said.pop("format"), "is of another format"),
    "no context": (lambda t, said: said.pop("context"), "damaged ('context')"),
    "no object": (lambda t, said: said.update(context=[1]), "damaged ("),
    "a field": (context_with(speed=1), "'speed' is not known"),
    "a type": (context_with(mem_len="8"), "mem_len is '8'"),
    "a length": (context_with(mem_len=-1), "--mem_len -1: must be at least 0"),
    "a shorter memory": (context_with(mem_len=3), "has the shape"),
    "other segments": (context_with(tgt_len=7), "its ids are not those since"),
    "clamped": (context_with(compressed_len=2**40), "--compressed_len"),
    "digits": (lambda t, said: said.update(n_token=10**400), "its ids are not those since"),
    "minus": (lambda t, said: said.update(n_token=-1), "its ids are not those since"),
    "tokens": (lambda t, said: said.update(n_token=3), "its ids are not those since"),
    "a digest": (lambda t, said: said.update(model="../x"), "its digests are none"),
    "texts": (lambda t, said: said.update(texts=[1]), "texts is"),
    "dtype": (lambda t, said: said.update(dtype="float8"), "no known dtype"),
    "no ids": (lambda t, said: t.pop("since"), "damaged ('since')"),
    "ids of floats": (
        lambda t, said: t.update(since=t["since"].double()),
        "since is no row of ids",
    ),
    "ids in a line": (lambda t, said: t.update(since=t["since"][0]), "since is no row of ids"),
    "an id": (lambda t, said: t["since"].fill_(10**6), "ids outside the vocabulary"),
    "another name": (
        lambda t, said: t.update({"memory.x": t["memory.0"].clone()}),
        "holds 'memory.x'",
    ),
    "a layer that is missing": (lambda t, said: t.pop("memory.0"), "damaged ("),
    "a layer too many": (
        lambda t, said: t.update({"memory.2": t["memory.0"].clone()}),
        "not those of this memory",
    ),
    "a layer far away": (
        lambda t, said: t.update({"memory.99": t["memory.0"].clone()}),
        "damaged (",
    ),
    "two rows": (
        lambda t, said: t.update({"memory.0": t["memory.0"].repeat(2, 1, 1)}),
        "has the shape (2, 8, 16)",
    ),
    "a short layer": (
        lambda t, said: t.update({"memory.1": t["memory.1"][:, :3].clone()}),
        "holds 3 states where",
    ),
    "wide": (
        lambda t, said: t.update({"memory.1": t["memory.1"].repeat(1, 1, 2)}),
        "has the shape",
    ),
    "half": (lambda t, said: t.update({"memory.1": t["memory.1"].half()}), "is of torch.float16"),
    "bytes": (lambda t, said: t.update({"memory.1": t["memory.1"].bool()}), "is of torch.bool"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_what_is_damaged_on_purpose_is_one_line(
    here: Here, kept: dict[str, Any], case: str
) -> None:
    change, said = DAMAGED[case]
    del kept["digest"]  # as whoever makes a file can do
    tensors = load_file("book.memory")
    change(tensors, kept)
    save_file(tensors, "bad.memory", metadata={"txl memory": json.dumps(kept)})
    line = here.refused("generate --memory_file bad.memory")
    assert line.startswith("generate.py: bad.memory: "), line
    assert said in line
    assert "read the text again with txl read" in line or "make one with txl read" in line


def test_no_bit_of_a_file_may_be_another(here: Here, kept: dict[str, Any]) -> None:
    whole = Path("book.memory").read_bytes()
    dice = random.Random(1)
    for place in dice.sample(range(len(whole)), 40):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << dice.randrange(8)
        Path("bad.memory").write_bytes(flipped)
        with pytest.raises(UsageError, match=r"bad\.memory: "):
            txl.load_memory("bad.memory")


def test_a_file_of_an_older_version_is_read(here: Here, kept: dict[str, Any]) -> None:
    """It has no digest, and a model in bfloat16 kept it in float32."""
    del kept["digest"]
    tensors = load_file("book.memory")
    save_file(tensors, "older.memory", metadata={"txl memory": json.dumps(kept)})
    lm = txl.load("run")
    nats = lm.score(MORE, memory=txl.load_memory("book.memory")).nats
    assert lm.score(MORE, memory=txl.load_memory("older.memory")).nats == nats
    here("read book.txt --work_dir run --to older.memory")


def test_the_memory_of_a_model_in_bfloat16_is_stored_in_it(here: Here) -> None:
    lm = txl.load("run", dtype="bfloat16")
    memory = lm.read(BOOK)
    back = between(lm, BOOK)
    stored = load_file("between.memory")
    states = memory.begun.memory.named()
    for name, state in states.items():
        assert stored[f"memory.{name}"].dtype == torch.bfloat16
        assert torch.equal(stored[f"memory.{name}"], state.bfloat16())
    nats = lm.score(MORE, memory=memory).nats
    assert lm.score(MORE, memory=back).nats == pytest.approx(nats, rel=0.02)


@pytest.mark.parametrize(
    "said", ["[" * 10**5, "", "[]", "{", '{"format": 1}', '{"format": ' + "9" * 5000 + "}"]
)
def test_a_header_that_says_nothing_of_use_is_one_line(here: Here, said: str) -> None:
    save_file({"memory.0": torch.zeros(1, 2, 3)}, "bad.memory", metadata={"txl memory": said})
    line = here.refused("generate --memory_file bad.memory")
    assert line.startswith("generate.py: bad.memory: "), line
    assert "read the text again with txl read" in line


def test_what_is_no_memory_is_one_line(here: Here, kept: dict[str, Any]) -> None:
    whole = Path("book.memory").read_bytes()
    Path("empty").write_bytes(b"")
    Path("cut").write_bytes(whole[:-9])
    Path("head").write_bytes(whole[:40])
    Path("huge").write_bytes((2**62).to_bytes(8, "little") + whole[8:])
    Path("weights").write_bytes(next(Path("run").glob("step_*/model.safetensors")).read_bytes())
    os.mkfifo("pipe")
    Path("gone").symlink_to("nowhere")
    for name in (
        "empty",
        "cut",
        "head",
        "huge",
        "weights",
        "book.txt",
        "pipe",
        "run",
        "gone",
        "missing",
    ):
        line = here.refused(f"score book.txt --work_dir run --memory_file {name}")
        assert line.startswith(f"score.py: {name}: "), line
        assert "with txl read FILE --to" in line


def test_where_a_memory_is_written_nothing_else_is_lost(
    here: Here, kept: dict[str, Any], full_disk: Any
) -> None:
    """A text that is named twice, a link, a device, a disk that is full."""
    whole = Path("book.memory").read_bytes()
    said = here.refused("read book.txt --work_dir run --to book.txt")
    assert "--to book.txt: is the file of --text, too" in said
    Path("notes.txt").write_text("mine")
    for name in ("notes.txt", "run/latest"):
        before = Path(name).read_bytes()
        assert "is there, and is nothing that txl read writes; name another file" in here.refused(
            f"read book.txt --work_dir run --to {name}"
        )
        assert Path(name).read_bytes() == before
    assert "is a device" in here.refused("read book.txt --work_dir run --to /dev/zero")
    assert "Is a directory" in here.refused("read book.txt --work_dir run --to run")
    assert "--to: name the file" in here.refused("read book.txt --work_dir run")
    assert "name the file of the text" in here.refused("read --work_dir run --to x.memory")
    Path("link").symlink_to("book.txt")
    here("read book.txt --work_dir run --to link")
    assert Path("book.txt").read_text() == BOOK
    assert not Path("link").is_symlink()
    with full_disk(1000):
        line = here.refused("read book.txt --work_dir run --to book.memory")
    assert "book.memory" in line
    assert Path("book.memory").read_bytes() == whole
    assert half_written(Path()) == []
    here("read book.txt --work_dir run --to new/book.memory")
    assert Path("new/book.memory").read_bytes() == whole


def test_flags_that_a_memory_decides_are_refused(here: Here, kept: dict[str, Any]) -> None:
    for entry in (
        "generate",
        "score book.txt --work_dir run",
        "read book.txt --work_dir run --to x.memory",
    ):
        line = here.refused(f"{entry} --memory_file book.memory --mem_len 4 --clamp_len 3")
        assert "--mem_len, --clamp_len: the memory of --memory_file brings its own" in line
        line = here.refused(f"{entry} --memory_file book.memory --mem_len 4 --no_same_length")
        assert "--mem_len, --no_same_length: the memory of --memory_file brings its own" in line
    line = here.refused("score book.txt --work_dir run --memory_file book.memory --dynamic sgd")
    assert "--memory_file: dynamic" in line


def test_a_model_whose_states_are_not_finite_keeps_no_memory(here: Here) -> None:
    lm = txl.load("run")
    with torch.no_grad():
        lm.model.layers[0].ff[0].weight.fill_(torch.inf)
    with pytest.raises(UsageError, match="not finite"):
        lm.read(BOOK)
