"""generate.py: prompts, endings, spelling, and what it prints where."""

import io
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from shlex import quote

import pytest

from tests.cli.conftest import Here
from txl.data_utils.wikitext import Detokeniser

Write = Callable[[str], str]


@pytest.fixture
def write(here: Here) -> Write:
    """What the trained model writes."""
    return lambda flags: here(f"generate {flags}").out


def tokens_of(out: str) -> list[str]:
    """The tokens of a printed text, `<eos>` being a line break; one that ends the output is not a token."""
    assert out.endswith("\n")
    return re.findall(r"\n|[^ \n]+", out[:-1])


def typed(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))


def test_a_memory_longer_than_any_text_is_no_burden(write: Write) -> None:
    far, all_of_it, little = (
        write(f"--seed 5 --length 30 {flags}")
        for flags in (
            f"--mem_len {2**31 - 1} --clamp_len {2**31 - 1}",
            "--mem_len 40",
            "--mem_len 1",
        )
    )
    assert far == all_of_it != little


def test_as_many_tokens_are_written_as_asked_for_also_after_a_long_prompt(write: Write) -> None:
    assert len(tokens_of(write("--length 1"))) == 1
    prompt = " ".join(["bab", "bad", "baf"] * 7)  # longer than a segment
    assert len(tokens_of(write(f"--prompt '{prompt}' --length 30").removeprefix(prompt))) == 30


def test_a_prompt_can_come_from_standard_input_or_a_file(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, b"bab ded\nbab\n")
    out = write("--prompt - --length 5")
    assert len(tokens_of(out.removeprefix("bab ded\nbab"))) == 5
    Path("my.txt").write_text("bab ded\nbab\n")
    assert write("--prompt_file my.txt --length 5") == out


def test_many_prompts_and_samples_are_continued_each_as_it_would_be_alone(write: Write) -> None:
    prompts = ["bab ded bab bad", "ded\u2028bab", "", "bab " * 12, "baf"]
    Path("my.txt").write_text("\n".join(prompts) + "\n")
    texts = (
        write("--prompts my.txt --batch_size 2 --length 12 --top_k 9")
        .removesuffix("\n")
        .split("\n---\n")
    )
    assert texts == [
        write(
            f"{f'--prompt {quote(text)}' if text else ''} --seed {1111 + i} --length 12 --top_k 9"
        )[:-1]
        for i, text in enumerate(prompts)
    ]
    samples = write("--prompt bab --num_samples 3 --length 9 --seed 7")[:-1].split("\n---\n")
    assert len(set(samples)) == 3
    assert samples[1] + "\n" == write("--prompt bab --length 9 --seed 8")


@pytest.mark.parametrize("mem_len", [100, 0])
def test_a_conversation_is_one_text_in_memory(
    write: Write, monkeypatch: pytest.MonkeyPatch, mem_len: int
) -> None:
    """Turns that add nothing go on with the text; without a memory, half of each segment is read again."""
    typed(monkeypatch, b"bab ded\n\n\n")
    turns = write(f"--interactive --length 10 --seed 2 --mem_len {mem_len}")
    whole = write(f"--prompt 'bab ded' --length 30 --seed 2 --mem_len {mem_len}")
    assert "".join(turns.split()) == "".join(whole.removeprefix("bab ded").split())
    typed(monkeypatch, b"bab\n")
    assert write("--interactive --prompt ded --length 3").startswith("ded ")


def test_a_setting_changes_the_text(write: Write) -> None:
    settings = (
        "",
        "--min_p 0.9",
        "--typical_p 0.2",
        "--repetition_penalty 3",
        "--no_repeat_ngram_size 1",
        "--lines 1",
    )
    assert len({write(f"--num_samples 10 --length 15 {flags}") for flags in settings}) == len(
        settings
    )


def test_the_text_ends_before_a_string_or_with_its_line_when_asked(write: Write) -> None:
    text, finished, longer = (
        write(f"--seed 3 {flags}")
        for flags in ("--length 40", "--length 40 --finish_line", "--length 80")
    )
    word = text.split()[5]
    assert write(f"--seed 3 --length 40 --stop never {word}") == text[: text.index(word)] + "\n"
    assert finished.startswith(text.rstrip("\n"))
    assert 40 < len(tokens_of(finished)) < 80
    # whose last character is the line break that the model has written
    assert longer.startswith(finished)


def test_unk_is_written_where_it_is_allowed_only_and_named_in_a_notice_where_it_is_read(
    here: Here, write: Write
) -> None:
    many = "--num_samples 15 --length 20"
    assert "<unk>" in write(f"{many} --allow_unk")
    assert "<unk>" not in (usual := write(many))
    assert usual == write(f"{many} --no_unk")
    outcome = here("generate --prompt 'bab Unheard unseen Unheard' --length 3")
    said = "--prompt: 3 of 4 words are not in the vocabulary and are read as <unk>: Unheard unseen"
    assert outcome.err == f"note: {said}\n"
    assert outcome.out.startswith("bab Unheard unseen Unheard ")
    assert write("--prompt 'bab unread' --length 3 --raw").startswith("bab <unk> ")


def train_on(here: Here, line: str, flags: str = "") -> None:
    for split in ("train", "valid"):
        Path(f"text/{split}.txt").write_text(line * 40, encoding="utf-8")
    here(f"train --max_step 1 --work_dir other {flags}")


def test_text_is_in_natural_spelling_unless_raw(here: Here) -> None:
    train_on(here, "one @-@ two , ( three ) .\n", "--dataset wt2")
    flags = "generate --work_dir other --length 7 --temperature 0 --prompt one-two,"
    natural, raw = here(flags).out, here(f"{flags} --raw").out
    assert natural.startswith("one-two,")
    assert raw.startswith("one @-@ two ,")
    words = raw.replace("\n", " <eos> ").split()[:-1]
    assert natural == "".join(map(Detokeniser(), words)) + "\n"


def test_names_of_bytes_have_no_lines(here: Here) -> None:
    """They would never end a text."""
    train_on(here, "one two.\n", "--dataset bytes")
    for flag in ("--lines 1", "--finish_line"):
        said = here.refused(f"generate --work_dir other --length 7 --raw {flag}")
        assert "--raw: names of bytes have no lines" in said
    assert here("generate --work_dir other --length 7 --raw").out


def test_words_that_standard_output_cannot_spell_are_escaped(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_on(here, "\u00fcber \u6771\u4eac\n")
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    monkeypatch.setattr(sys, "stdout", out)
    here("generate --work_dir other --prompt \u00fcber --length 3")
    assert out.buffer.getvalue().startswith(b"\\xfcber ")


def test_a_reader_that_has_seen_enough_gets_no_complaint(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert here("generate", status=141).err == ""


def test_an_unknown_word_in_the_prompt_is_named_where_there_is_no_unk(here: Here) -> None:
    here("train --dataset wt103 --max_step 1")
    line = here.refused("generate --work_dir new --prompt 'bab unread'")
    assert "--prompt: the word 'unread' is not in the vocabulary, which has no <unk>" in line


@pytest.mark.parametrize("flag", ["--num_samples 1000000000000", "--num_beams 1000000000"])
def test_more_than_memory_holds_is_refused_before_it_is_begun(here: Here, flag: str) -> None:
    refused = here.refused(f"generate --length 3 {flag}")
    assert re.fullmatch(
        rf"generate.py: {flag}: needs at least .* GiB of memory, and .* are free; ask for less",
        refused,
    )
