"""A model with the tokenizer of its folder: what is encoded, scored, generated and evaluated are its ids as they
stand."""

import io
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import txl
from tests.cli.conftest import call, entry_points
from tests.convert.toy_source import N_TOKEN, Toy
from tests.data.tokenizer_files import TEXT, write_folder
from txl.config import UsageError
from txl.evaluation.score import score_text
from txl.language.chat import Chat, ChatLayout
from txl.language.model import LanguageModel
from txl.registry import SOURCES

pytest.importorskip("tokenizers")
__all__ = ["call", "entry_points"]
PIECE = "The first of 2,048 tokens\n\n isn't the end.\n"


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    SOURCES["toy"] = Toy
    yield
    del SOURCES["toy"]


def opened(kind: str, **settings: Any) -> tuple[LanguageModel, Any]:
    """A model in the folder `model`, and the library's tokenizer of it."""
    theirs = write_folder(Path("model"), kind, **settings)
    Path("model/toy").write_text("")
    return txl.load("model"), theirs


def ids_of(theirs: Any, text: str) -> list[int]:
    return theirs.encode(text, add_special_tokens=False).ids


def nats_of(lm: LanguageModel, ids: list[int], first: int) -> list[float]:
    return score_text(lm.model, ids, lm.reading_context(len(ids)), first=first).tolist()


@pytest.mark.parametrize("kind", ["smollm", "llama_2", "llama_3"])
def test_a_text_is_scored_as_it_stands(kind: str) -> None:
    """After what the post-processor puts before it; where that is nothing, from its second token on."""
    lm, theirs = opened(kind)
    ids = ids_of(theirs, PIECE)
    assert lm.encode(PIECE) == ids
    assert len(lm.tokenizer) == N_TOKEN
    begins = theirs.encode(PIECE).ids[: -len(ids)]
    assert len(begins) == (0 if kind == "smollm" else 1)
    score = lm.score(PIECE)
    first = max(1, len(begins))
    assert score.nats == pytest.approx(nats_of(lm, [*begins, *ids], first), rel=1e-5)
    assert score.tokens == [lm.tokenizer.words[i] for i in [*begins, *ids][first:]]
    assert lm.hidden_states(PIECE).shape == (len(ids), 16)


@pytest.mark.parametrize("kind", ["smollm", "llama_2"])
def test_a_continuation_is_encoded_with_what_it_continues(kind: str) -> None:
    lm, theirs = opened(kind)
    context, text = "the end of", " the text\n"
    whole = ids_of(theirs, context + text)
    before = [*lm.tokenizer.begins, *ids_of(theirs, context)]
    ids = [*lm.tokenizer.begins, *whole]
    score = lm.score(text, context)
    assert score.nats == pytest.approx(nats_of(lm, ids, len(before)), rel=1e-5)
    assert score.tokens == [lm.tokenizer.words[i] for i in ids[len(before) :]]


def test_one_token_with_nothing_before_it_is_refused() -> None:
    lm, _ = opened("smollm")
    with pytest.raises(UsageError, match="one token, and nothing before it"):
        lm.score("t")
    assert len(lm.score("1", "a").nats) == 1


def test_a_generated_text_ends_before_the_token_for_that() -> None:
    lm, theirs = opened("smollm", eos_token="<|im_end|>")
    assert lm.generate("the end", length=30, seed=1) != ""
    name = "\u0120the"  # in the spelling of bytes
    likely = lm.tokenizer.index[name]
    with torch.no_grad():
        lm.model.softmax.biases[0][likely] += 100.0
    assert lm.generate("the end", length=4, temperature=0) == " the" * 4
    ends = {"eos_token_id": [likely, 3]}
    Path("model/generation_config.json").write_text(json.dumps(ends))
    other = txl.load("model")
    with torch.no_grad():
        other.model.softmax.biases[0][likely] += 100.0
    assert other.generate("the end", length=4, temperature=0) == ""
    assert other.generate(["the end", "a"], length=4, temperature=0) == ["", ""]
    assert other.generate("the end", length=4, num_beams=2) == ""
    assert ids_of(theirs, "<|im_end|>") == [3]


def test_an_empty_prompt_begins_after_the_token_for_that() -> None:
    lm, _ = opened("smollm", bos_token="<|begin|>")
    same = {"length": 20, "seed": 3}
    assert lm.generate("", **same) == lm.generate("<|begin|>", **same)
    assert lm.generate("", **same) != lm.generate("<|im_start|>", **same)


def test_programs_read_the_ids_as_they_stand(call: Callable[..., Any]) -> None:
    lm, theirs = opened("smollm")
    folder = Path("text")
    folder.mkdir()
    (folder / "test.txt").write_bytes(TEXT.encode())
    (folder / "valid.txt").write_bytes(PIECE.encode())
    ids = ids_of(theirs, TEXT)
    expected = sum(nats_of(lm, ids, 1))
    done = call("eval", *"--work_dir model --data text --split test --json out.json".split())
    assert done.status == 0, done
    (row,) = json.loads(Path("out.json").read_text())["rows"]
    assert row["tokens"] == len(ids) - 1
    done = call("eval", *"--work_dir model --text text/test.txt --per_token each.json".split())
    assert done.status == 0, done
    tokens = json.loads(Path("each.json").read_text())["tokens"]
    assert [token["id"] for token in tokens] == ids[1:]
    assert "".join(token["surface"] for token in tokens) == TEXT.removeprefix("The")
    assert math.fsum(token["nats"] for token in tokens) == pytest.approx(expected, rel=1e-4)
    Path("lines.txt").write_text("1\n\nthe end\n1")
    done = call("eval", *"--work_dir model --text lines.txt --each line --per_token o.json".split())
    assert done.status == 0, done
    tokens = json.loads(Path("o.json").read_text())["tokens"]
    assert {token["line"] for token in tokens} == {1, 3}


def test_flags_that_name_another_tokenizer_are_refused(call: Callable[..., Any]) -> None:
    opened("smollm")
    for flags in ("--vocabulary words.txt", "--dataset text"):
        done = call("generate", *f"--work_dir model --prompt a {flags}".split())
        assert done.status == 2
        assert "has a tokenizer of its own; leave the flag out" in done.complaints[0]


def test_a_run_that_is_written_reads_as_the_folder_did() -> None:
    lm, _ = opened("llama_3", eos_token="<|end|>", bos_token="<|begin|>", chat_template="x")
    lm.write("run")
    again = txl.load("run")
    assert again.encode(PIECE) == lm.encode(PIECE)
    assert again.tokenizer.begins == lm.tokenizer.begins
    assert again.tokenizer.stop_ids == lm.tokenizer.stop_ids == {1}
    assert again.tokenizer.chat_template == "x"
    np.testing.assert_allclose(again.score(PIECE).nats, lm.score(PIECE).nats, rtol=1e-6)


CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)


def talking(**settings: Any) -> tuple[LanguageModel, Any]:
    given: dict[str, Any] = {"eos_token": "<|im_end|>", "chat_template": CHATML}
    return opened("smollm", **given | settings)


def laid_out(*said: tuple[str, str]) -> str:
    lines = [f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in said]
    return "".join(lines) + "<|im_start|>assistant\n"


def test_an_answer_continues_the_text_of_the_template() -> None:
    lm, _ = talking()
    message = {"role": "user", "content": "the end"}
    answer = lm.chat([message], length=12, seed=2)
    assert answer == lm.generate(laid_out(("user", "the end")), length=12, seed=2)
    lm, _ = opened("llama_3", eos_token="<|im_end|>", chat_template="<|begin|>{{ CHAT }}a")
    answer = lm.chat([message], length=12, seed=2)
    assert answer == lm.generate("a", length=12, seed=2), "the template has what texts begin with"


THINKING = (
    "{% if tools %}{{ tools[0].name }} {% endif %}{{ messages[0].content }}"
    "{% if enable_thinking is defined and not enable_thinking %} the end{% endif %}"
)


def test_arguments_of_a_template_are_its_own(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lm, _ = talking(chat_template=THINKING)
    parts = [{"type": "text", "text": "be"}, {"type": "text", "text": "gin"}]
    for content in ("begin", parts):
        messages = [{"role": "user", "content": content}]
        for given, text in (
            ({}, "begin"),
            ({"enable_thinking": False}, "begin the end"),
            ({"tools": [{"name": "add"}], "enable_thinking": True}, "add begin"),
        ):
            said = lm.chat(messages, length=9, seed=2, **given)
            assert said == lm.generate(text, length=9, seed=2), given
    for given, message in (
        ({"thinking": 1}, "chat template: does not read thinking, only enable_thinking, tools"),
        ({"tools": [print]}, "not JSON serializable; give messages and arguments as JSON"),
    ):
        with pytest.raises(UsageError, match=message):
            lm.chat([{"role": "user", "content": "a"}], **given)
    with pytest.raises(UsageError, match="temprature: no such setting; there are memory, length"):
        lm.generate("a", temprature=1)
    words = "generate --work_dir model --interactive --length 9 --seed 2".split()
    for given, text in (({}, "begin"), ({"enable_thinking": False}, "begin the end")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"begin\n")))
        done = call(*words, "--chat_template_args", json.dumps(given))
        assert done.out.strip("\n") == lm.generate(text, length=9, seed=2).strip("\n")
    for wrong in (["[1]"], ["{"], ["[" * 9999], ['{"tools": 1}', "--no_chat"]):
        done = call(*words, "--chat_template_args", *wrong)
        assert (done.status, len(done.complaints)) == (2, 1)


def test_a_token_that_nothing_is_named_is_no_token_of_a_chat() -> None:
    """The template has nothing in its place, as in transformers, and it ends no turn."""
    lm, _ = talking(eos_token=None, chat_template="{{ bos_token }}{{ eos_token }}the end")
    with torch.no_grad():
        lm.model.softmax.biases[0][0] += 1000.0
    message = {"role": "user", "content": "a"}
    assert ChatLayout(lm.tokenizer).text_of([message]) == "the end"
    assert lm.chat([message], length=2) == "<|begin|>" * 2


def test_an_answer_ends_with_the_turn() -> None:
    """Also where texts end with another token."""
    talking()
    Path("model/generation_config.json").write_text('{"eos_token_id": 1}')
    lm = txl.load("model")
    with torch.no_grad():
        lm.model.softmax.biases[0][3] += 1000.0
    assert lm.chat([{"role": "user", "content": "a"}], length=5) == ""
    assert lm.generate("a", length=2) == "<|im_end|>" * 2


def test_a_model_without_a_template_has_no_chat(call: Callable[..., Any]) -> None:
    lm, _ = opened("smollm")
    with pytest.raises(UsageError, match="no chat template"):
        lm.chat([{"role": "user", "content": "a"}])
    done = call("generate", *"--work_dir model --interactive --system a".split())
    assert (done.status, len(done.complaints)) == (2, 1)
    assert "--system: the model's tokenizer has no chat template" in done.err


class Talk:
    """A chat whose model says what a test wants."""

    def __init__(self, lm: LanguageModel, length: int, **settings: Any) -> None:
        how = lm._generator(length=length, temperature=0, **settings)
        self.chat = Chat(how)
        self.read: list[list[int]] = []
        self.n_session = 1

    def answer(self, text: str) -> str:
        before = self.chat._session
        said = "".join(self.chat.answer(text))
        self.n_session += self.chat._session is not before
        return said


def test_turns_are_read_once_and_as_the_template_lays_them_out() -> None:
    lm, theirs = talking()
    with torch.no_grad():  # a greedy text of whole tokens, so that its text has the same tokens
        lm.model.softmax.biases[0][lm.tokenizer.index["\u0120the"]] += 1000.0
    talk = Talk(lm, length=3)
    assert talk.answer("a") == " the the the"
    assert talk.answer("b") == " the the the"
    messages = [("user", "a"), ("assistant", " the the the"), ("user", "b")]
    assert talk.n_session == 1
    assert talk.chat._read[:-3] == ids_of(theirs, laid_out(*messages))
    assert [tuple(m.values()) for m in talk.chat.messages[:3]] == messages


def test_turns_that_the_template_lays_out_anew_are_read_again() -> None:
    lm, theirs = talking(chat_template=CHATML.replace("m.content +", "m.content[:3] +"))
    with torch.no_grad():
        lm.model.softmax.biases[0][lm.tokenizer.index["\u0120the"]] += 1000.0
    talk = Talk(lm, length=3)
    talk.answer("a")
    talk.answer("b")
    assert talk.n_session == 2
    messages = [("user", "a"), ("assistant", " th"), ("user", "b")]
    assert talk.chat._read[:-3] == ids_of(theirs, laid_out(*messages))


def test_an_answer_that_was_cut_goes_on() -> None:
    lm, _ = talking()
    with torch.no_grad():
        lm.model.softmax.biases[0][lm.tokenizer.index["\u0120the"]] += 1000.0
    talk = Talk(lm, length=2)
    assert list(talk.chat.go_on()) == []
    talk.answer("a")
    assert "".join(talk.chat.go_on()) == " the the"
    assert talk.chat.messages[-1]["content"] == " the" * 4
    with torch.no_grad():
        lm.model.softmax.biases[0][3] += 5000.0
    assert talk.answer("b") == ""
    assert list(talk.chat.go_on()) == []


def test_an_answer_that_was_cut_within_a_character_has_it() -> None:
    lm, theirs = talking()
    bytes_of_it = ids_of(theirs, "\u03a9")
    assert len(bytes_of_it) == 2
    with torch.no_grad():
        lm.model.softmax.biases[0][bytes_of_it] += torch.tensor([2000.0, 1000.0])
    talk = Talk(lm, length=1, no_repeat_ngram_size=1)
    assert talk.answer("a") == ""
    assert "".join(talk.chat.go_on()) == "\u03a9"
    assert talk.chat.messages[-1]["content"] == "\u03a9"


def test_lines_of_a_terminal_are_turns(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lm, _ = talking()
    flags = "--work_dir model --interactive --length 4 --seed 3".split()

    def said(*more: str) -> str:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\n\nb\n")))
        done = call("generate", *flags, *more)
        assert done.status == 0, done
        return done.out

    plain = said("--no_chat")
    assert said() != plain
    assert said("--system", "x") != said()
    first = lm.chat([{"role": "user", "content": "a"}], length=4, seed=3)
    assert said().startswith(first)
    assert said("--prompt", "a").startswith(f"a\n{first}\n")


def test_what_is_said_first_needs_a_chat(call: Callable[..., Any]) -> None:
    talking()
    done = call("generate", *"--work_dir model --interactive --no_chat --system a".split())
    assert (done.status, len(done.complaints)) == (2, 1)
    assert "--system: is said in a chat only; leave --no_chat out" in done.err
