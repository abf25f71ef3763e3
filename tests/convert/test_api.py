"""`txl.load`: a trained model and its vocabulary as one object."""

import json
import re
import shutil
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import txl
from tests.cli.conftest import Here, Trained
from tests.convert.conftest import WORDS, write_words
from txl.config import UsageError
from txl.generation.rule import Rule
from txl.generation.sampling import drawn
from txl.language.sources import located


@pytest.fixture
def lm(trained: Trained) -> txl.LanguageModel:
    return txl.load(trained.run)


def test_a_text_has_the_figures_of_eval_py(here: Here, lm: txl.LanguageModel) -> None:
    Path("before.txt").write_text("bab ded\n")
    Path("my.txt").write_text("bab ded bab\nded")
    here("eval --text my.txt --context before.txt --per_token my.json")
    theirs = json.loads(Path("my.json").read_text())["tokens"]
    score = lm.score("bab ded bab\nded", context="bab ded\n")
    assert (
        score.tokens
        == [token["token"] for token in theirs]
        == ["bab", "ded", "bab", "<eos>", "ded"]
    )
    assert score.nats == pytest.approx([token["nats"] for token in theirs], rel=1e-6)
    assert lm.loglikelihood("bab ded\n", "bab ded bab\nded") == pytest.approx(-score.total_nats)
    assert score.perplexity == pytest.approx(torch.tensor(score.nats).mean().exp().item(), rel=1e-5)


def test_a_line_break_before_a_text_is_its_context(lm: txl.LanguageModel) -> None:
    after = lm.score("bab ded", context="\n").nats
    assert after == pytest.approx(lm.score("\nbab ded").nats[1:], rel=1e-6)
    assert after != lm.score("bab ded").nats == lm.score("bab ded", context=" ").nats


def test_hidden_states_give_the_probabilities_of_the_next_words(lm: txl.LanguageModel) -> None:
    text = "bab ded bab ded ded bab " * 5
    hidden_ND = lm.hidden_states(text)
    score = lm.score(text)
    ids = torch.tensor(lm.tokenizer.ids_of(score.tokens))
    nll = -lm.model.log_prob(hidden_ND[:-1]).gather(1, ids[1:, None])[:, 0]
    assert len(hidden_ND) == len(score.tokens) == 30
    torch.testing.assert_close(nll, torch.tensor(score.nats[1:]), rtol=1e-4, atol=1e-5)


def test_generation_is_repeatable_and_never_unknown(lm: txl.LanguageModel) -> None:
    pieces = list(lm.stream("bab ded", length=40, seed=3))
    assert len(pieces) == 40
    assert "<unk>" not in "".join(pieces)
    assert lm.generate("bab ded", length=40, seed=3) == "".join(pieces)
    assert lm.generate(length=3, temperature=0) == lm.generate(length=3, temperature=0)
    assert "<unk>" in lm.generate(length=400, allow_unknown=True, seed=0)
    assert (
        lm.generate("bab", length=40, lines=1, stop="bab", repetition_penalty=1.2, seed=1).count(
            "\n"
        )
        == 0
    )


@pytest.mark.parametrize("prompt", ["bab ded", "ded bab\nbad baf ded bab ded"])
def test_what_is_sampled_is_what_is_scored(lm: txl.LanguageModel, prompt: str) -> None:
    """Samples are draws from the probabilities of `score`, which reads a text from the token that ends a line."""
    for parameter in lm.model.parameters():  # what comes next depends on all that was before
        parameter.data.normal_(std=0.4)
    words = [lm.decode([i]) for i in range(len(lm.tokenizer))]
    logprob_V = torch.tensor([lm.loglikelihood(prompt, word) for word in words])
    prob_V = Rule(top_k=40).probabilities(logprob_V)
    texts = lm.generate([prompt] * 30, length=1, top_k=40, allow_unknown=True, seed=0)
    ids = [drawn(prob_V, torch.Generator().manual_seed(seed)) for seed in range(30)]
    assert [text.strip(" ") for text in texts] == [words[i] for i in ids]


@pytest.mark.parametrize(
    "ending", [{}, {"lines": 1}, {"stop": "ded"}, {"stop": "\nb", "length_penalty": -1.0}]
)
def test_beams_find_a_likelier_text_than_greedy(
    lm: txl.LanguageModel, ending: dict[str, Any]
) -> None:
    settings = {"length": 8, **ending}
    text = lm.generate("bab ded", num_beams=5, **settings)
    again, other = lm.generate(["bab ded", "bad"], num_beams=5, **settings)
    assert text == again != other
    greedy = lm.generate(
        "bab ded", temperature=0, **{k: v for k, v in settings.items() if k != "length_penalty"}
    )
    if not ending:
        assert lm.loglikelihood("bab ded", text) > lm.loglikelihood("bab ded", greedy)
        assert len(lm.encode(text)) == 8
    assert ending.get("stop", "\n" if ending else "<unk>") not in text
    with pytest.raises(UsageError, match="num_beams 2"):
        lm.generate("bab", num_beams=2, top_p=0.5)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"batch_size": -1}, "batch_size -1: must be at least 1"),
        ({"num_beams": 0}, "num_beams 0: must be at least 1"),
        ({"length_penalty": 2.0}, "length_penalty 2.0: only with num_beams above 1"),
        ({"num_beams": 2, "length_penalty": 1000.0}, "length_penalty 1000.0: must be at least -20"),
        ({"lines": -1}, "--lines -1: must be at least 0"),
    ],
)
def test_settings_that_the_command_line_refuses_are_refused(
    lm: txl.LanguageModel, settings: dict[str, Any], why: str
) -> None:
    with pytest.raises(UsageError, match=f"^{why}"):
        lm.generate(["bab", "ded"], length=2, **settings)


def test_it_opens_its_text_and_writes_itself(
    lm: txl.LanguageModel, trained: Trained, tmp_path: Path
) -> None:
    corpus = lm.corpus(lm.data_config({"cache_dir": str(tmp_path / "cache")}))
    assert (
        lm.decode(corpus.split("valid")).split() == (trained.text / "valid.txt").read_text().split()
    )
    lm.write(tmp_path / "again")
    assert txl.load(tmp_path / "again").score("bab ded").nats == lm.score("bab ded").nats


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_are_kept_in_16_bits(
    lm: txl.LanguageModel, trained: Trained, dtype: str, tmp_path: Path
) -> None:
    """From reading on: with nearly the figures, from any source, and outside its methods nothing is in half precision.
    Such weights are not written."""
    small = txl.load(trained.run, dtype=dtype)
    sizes = [sum(p.nbytes for p in each.model.parameters()) for each in (small, lm)]
    assert sizes[0] < 0.57 * sizes[1]  # LayerNorm and positions are as they were
    assert small.score("bab ded").nats == pytest.approx(lm.score("bab ded").nats, abs=0.05)
    assert small.score("bab ded").nats != lm.score("bab ded").nats
    torch.testing.assert_close(
        small.hidden_states("bab ded"), lm.hidden_states("bab ded"), rtol=0, atol=0.1
    )
    pieces = small.stream("bab", length=3, temperature=0)
    first = next(pieces)
    assert not torch.is_autocast_enabled("cpu")
    assert first + "".join(pieces) == small.generate(["bab"], length=3, temperature=0)[0]
    with pytest.raises(
        UsageError, match=f"dtype {dtype}: its weights are rounded; open it in float32 to write it"
    ):
        small.write(tmp_path / "again")
    lm.write(tmp_path / "theirs", "original")
    assert (
        txl.load(tmp_path / "theirs", dtype=dtype, dataset="text").score("bab ded").nats
        == small.score("bab ded").nats
    )
    with pytest.raises(UsageError, match="dtype half: no such dtype; there are auto, float32"):
        txl.load(trained.run, dtype="half")


def test_checkpoints_of_others_and_single_checkpoints(trained: Trained, hf: Path) -> None:
    checkpoint = next(trained.run.glob("step_*"))
    assert txl.load(checkpoint).tokenizer.words == txl.load(trained.run).tokenizer.words
    with pytest.raises(
        UsageError, match=r" is a run of txl and has its own vocabulary; leave it out"
    ):
        txl.load(checkpoint, vocabulary=checkpoint / "vocab.txt")
    with pytest.raises(UsageError, match="holds no vocabulary"):
        txl.load(hf)
    (hf.parent / "words").mkdir()
    write_words(hf.parent / "words", WORDS)
    assert txl.load(hf, vocabulary=hf.parent / "words" / "vocab.txt").score("w3 w4").tokens == [
        "w3",
        "w4",
    ]


# where models are


def hub(monkeypatch: pytest.MonkeyPatch, found: Path | Exception) -> list[str]:
    """Stands for the library of the hub; lists what it is asked for."""
    asked: list[str] = []

    def download(name: str, allow_patterns: list[str], **_: Any) -> str:
        asked.append(name)
        if isinstance(found, Exception):
            raise found
        copy = Path(tempfile.mkdtemp(dir=found.parent))
        for path in (path for path in found.rglob("*") if path.is_file()):
            name = str(path.relative_to(found))
            if any(fnmatchcase(name, pattern) for pattern in allow_patterns):
                (copy / name).parent.mkdir(exist_ok=True)
                shutil.copy(path, copy / name)
        return str(copy)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=download))
    return asked


def test_a_chat_template_in_a_file_of_its_own_comes_with_the_model(
    monkeypatch: pytest.MonkeyPatch, trained: Trained, tmp_path: Path
) -> None:
    shutil.copytree(trained.run, tmp_path / "there")
    (tmp_path / "there" / "chat_template.jinja").write_text("{{ messages }}")
    hub(monkeypatch, tmp_path / "there")
    assert (located("someone/model") / "chat_template.jinja").is_file()


class RepositoryNotFoundError(OSError):
    """As the hub's."""


def test_a_model_of_the_hub_or_below_the_home_folder(
    monkeypatch: pytest.MonkeyPatch, trained: Trained
) -> None:
    words = txl.load(trained.run).tokenizer.words
    asked = hub(monkeypatch, trained.run)
    assert txl.load("someone/model").tokenizer.words == words
    assert asked == ["someone/model"]
    monkeypatch.setenv("HOME", str(trained.run.parent))
    assert txl.load(f"~/{trained.run.name}").tokenizer.words == words
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UsageError, match="pip install huggingface_hub"):
        txl.load("someone/model")
    with pytest.raises(UsageError, match="no such file or folder"):
        txl.load("nowhere")


ELSEWHERE: list[tuple[str, Exception | None, str]] = [
    ("runs/typo", FileNotFoundError("no snapshot\nin"), "could not be asked (no snapshot)"),
    ("runs/typo", RepositoryNotFoundError("404"), "the hub has no such model, or it is private"),
    *((f"{folder}/typo", None, "file or folder; give a run") for folder in ("~", ".", "here")),
]


@pytest.mark.parametrize(("source", "error", "why"), ELSEWHERE)
def test_a_folder_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str, error: Exception | None, why: str
) -> None:
    """The hub is not asked for what is below a folder of this machine."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    asked = hub(monkeypatch, error or tmp_path)
    with pytest.raises(UsageError, match=f"^{source}: no such.*{re.escape(why)}"):
        txl.load(source)
    assert asked == ([source] if error else [])
