"""lm-evaluation-harness with our models: beside stand-ins for its classes where it is not installed.

Its own command needs it; scripts/test_with_transformers.sh makes its environment and runs this.
"""

import errno
import json
import math
import os
import re
import runpy
import signal
import subprocess
import sys
import unittest.mock
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import txl
from tests.cli.conftest import (
    Here,
    Outcome,
    call,
    entry_points,
    here,
    run_folder,
    text,
    trained,
    write_text,
)
from tests.convert.test_llama_journey import folder
from tests.data.tokenizer_files import write_folder
from tests.forks import ROOT
from tests.generation.test_chat_templates import LLAMA_3, SMOLLM
from txl.config import Context, ModelConfig, UsageError
from txl.data_utils.pretrained import Pretrained
from txl.data_utils.tokens import ALL_BYTES, Characters, Symbols, Vocab
from txl.evaluation.score import score_text
from txl.language.model import LanguageModel
from txl.model.transformer import TransformerXL
from txl.registry import ADAPTATION_RULES

__all__ = ["call", "entry_points", "folder", "here", "run_folder", "text", "trained", "write_text"]
IS_INSTALLED = find_spec("lm_eval") is not None
PAGE = "= bab =\n\nbab ded bab , the ded .\n" + "ded bab bab ded \n" * 40
TASKS: dict[str, dict[str, Any]] = {
    "page": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{page}}",
        "metric_list": [{"metric": "word_perplexity"}, {"metric": "byte_perplexity"}],
    },
    "choice": {
        "output_type": "multiple_choice",
        "doc_to_text": "bab ded",
        "doc_to_choice": ["bab", "ded", "nobody knows"],
        "doc_to_target": 0,
    },
    "write": {
        "output_type": "generate_until",
        "doc_to_text": "bab ded",
        "doc_to_target": "ded",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 12},
        "metric_list": [{"metric": "exact_match"}],
    },
}


class StandIn:
    """What our model needs of the harness's."""

    def __init__(self) -> None:
        self.cache_hook = SimpleNamespace(add_partial=lambda *_: None)


@pytest.fixture(scope="module")
def harness() -> Iterator[Any]:
    """The class of our model."""
    parts = {
        "": {},
        ".models": {},
        ".api": {},
        ".api.model": {"LM": StandIn},
        ".api.registry": {"register_model": lambda _: lambda c: c},
    }
    with pytest.MonkeyPatch.context() as patch:
        if not IS_INSTALLED:
            for name, content in parts.items():
                module = ModuleType(f"lm_eval{name}")
                module.__dict__.update(content)
                patch.setitem(sys.modules, module.__name__, module)
            patch.delitem(sys.modules, "txl.lm_eval", raising=False)
        yield import_module("txl.lm_eval").TransformerXLForHarness
        if not IS_INSTALLED:
            sys.modules.pop("txl.lm_eval")


def requests(*arguments: tuple[Any, ...]) -> list[Any]:
    return [SimpleNamespace(args=args) for args in arguments]


def nats_of_eval(here: Here, flags: str = "") -> float:
    """The page's total, by eval.py."""
    Path("page.txt").write_text(PAGE)
    here(f"eval --text page.txt --per_token page.json {flags}")
    return math.fsum(token["nats"] for token in json.loads(Path("page.json").read_text())["tokens"])


@pytest.mark.slow
@pytest.mark.parametrize("mem_len", [None, 5])
def test_a_page_has_the_figures_of_eval_py(harness: Any, here: Here, mem_len: int | None) -> None:
    model = harness("run", mem_len=mem_len, batch_size=1)
    found, nothing = model.loglikelihood_rolling(requests((PAGE,), ("",)))
    expected = nats_of_eval(here, "" if mem_len is None else f"--mem_len {mem_len}")
    assert found == pytest.approx(-expected, rel=1e-6)
    assert nothing == 0.0


def test_continuations(harness: Any, here: Here) -> None:
    model, lm = harness("run"), txl.load("run")
    context = "bab ded " * 30
    likely = lm.generate(context, length=3, temperature=0)
    pairs = [(context, " bab ded"), (context, f" {likely}"), ("", "ded"), ("ded", " bab\n")]
    found = model.loglikelihood(requests(*pairs))
    for (nats, is_greedy), pair in zip(found, pairs, strict=True):
        assert nats == pytest.approx(lm.loglikelihood(*pair), rel=1e-5)
        assert isinstance(is_greedy, bool)
    assert found[1][1]
    assert not model.loglikelihood(requests((context, " <unk>")))[0][1]


CHARACTERS = Characters(["\n", "<unk>", " ", "a", "b", "\t"])
VOCABULARIES = {
    "text": Vocab(["<eos>", "<unk>", "a", "b"]),
    "characters": CHARACTERS,
    "bytes": Symbols(ALL_BYTES),
}


@pytest.mark.parametrize("dataset", VOCABULARIES)
def test_white_space_is_scored_where_it_is_tokens(
    harness: Any, dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocab = VOCABULARIES[dataset]
    model = TransformerXL(
        ModelConfig(n_token=len(vocab), n_layer=1, n_head=1, d_head=8, d_model=8, d_inner=8)
    ).eval()
    lm = LanguageModel(model, Context(tgt_len=8, mem_len=8), vocab, {"data": {"dataset": dataset}})
    monkeypatch.setattr(LanguageModel, "open", lambda *_, **__: lm)
    reader = harness("run")
    nothing = ["", *([" ", "\t", "\u3000", "  \t "] if dataset == "text" else [])]
    for blank in nothing:
        for before in ("a", ""):
            assert reader.loglikelihood(requests((before, blank))) == [(0.0, True)]
        assert reader.loglikelihood_rolling(requests((blank,))) == [0.0]
    tokens = ["\n", "\n\n", " \n\t"] if dataset == "text" else [" ", "\t", "\n\n", "\u3000", "  "]
    for blank in tokens:
        ((nats, _),) = reader.loglikelihood(requests(("a", blank)))
        assert nats == pytest.approx(lm.loglikelihood("a", blank), rel=1e-5)
        assert nats < -1
        assert reader.loglikelihood_rolling(requests((blank,))) == pytest.approx(
            [-lm.score(blank).total_nats]
        )
        ((after, _),) = reader.loglikelihood(requests((blank, "b")))
        if dataset != "text":
            assert after == pytest.approx(lm.loglikelihood(blank, "b"), rel=1e-5)


def test_generation_ends_at_a_string(harness: Any, here: Here) -> None:
    model, whole = (
        harness("run"),
        txl.load("run").generate("bab ded", length=20, temperature=0, allow_unknown=False),
    )
    word = whole.split()[3]
    settings = [
        {"until": [word]},
        {"until": "never"},
        {"until": [], "max_gen_toks": 3, "temperature": 0.0},
    ]
    asked = requests(*(("bab ded", {"max_gen_toks": 20} | each) for each in settings))
    stopped, unstopped, short = model.generate_until(asked)
    assert stopped == whole[: whole.index(word)]
    assert unstopped == whole
    assert whole.startswith(short)


@pytest.mark.parametrize(
    "rule", [{"repetition_penalty": 30.0}, {"min_p": 1.0}, {"typical_p": 1e-6}], ids=str
)
def test_what_a_task_asks_of_sampling_is_done(
    harness: Any, here: Here, rule: dict[str, Any]
) -> None:
    asked = {"max_gen_toks": 20, "do_sample": True, "temperature": 1.0, **rule}
    torch.manual_seed(1)
    (text,) = harness("run").generate_until(requests(("bab ded", asked)))
    torch.manual_seed(1)
    lm = txl.load("run")
    assert text == lm.generate("bab ded", length=20, **rule)
    torch.manual_seed(1)
    assert text != lm.generate("bab ded", length=20)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (
            {"memlen": 64},
            "memlen=64: no such setting; there are path, vocabulary, tgt_len, mem_len, clamp_len",
        ),
        ({"same_length": True, "x": 1}, "same_length=True, x=1: no such setting"),
        ({"memory": "sinks", "n_sink": "x"}, "n_sink=x: not of type int"),
        ({"memory": "sinks", "compressed_len": 1.5}, "compressed_len=1.5: not a whole number"),
        ({"mem_len": "x"}, "mem_len=x: not a whole number"),
        (
            {"dtype": "half"},
            "dtype half: no such dtype; there are auto, float32, bfloat16, float16",
        ),
        ({"path": "", "mem_len": 5}, "path is missing; give --model_args path=RUN"),
    ],
)
def test_settings_without_effect_are_refused_by_name(
    harness: Any, settings: dict[str, Any], why: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(why)):
        harness(**{"path": "run", "batch_size": 1} | settings)


def test_a_memory_and_its_settings_are_those_of_txl_load(harness: Any, here: Here) -> None:
    model = harness("run", memory="sinks", n_sink=2, mem_len=5, lookup_len=7)
    lm = txl.load("run", memory="sinks", n_sink=2)
    assert model.lm.model_config == lm.model_config
    assert model.lm.context == lm.context.overlaid(mem_len=5, lookup_len=7)


def test_settings_of_the_harness_itself_are_taken(harness: Any, here: Here) -> None:
    passed = {
        "batch_size": "auto:4",
        "max_batch_size": 8,
        "device": "cuda:0",
        "trust_remote_code": True,
    }
    assert harness("run", dtype="auto", **passed).lm.context == txl.load("run").context
    assert [harness("run", dtype=name).lm.dtype for name in ("auto", "bfloat16")] == [
        torch.float32,
        torch.bfloat16,
    ]


@pytest.mark.slow
@pytest.mark.skipif(
    not IS_INSTALLED, reason="lm_eval is not installed; run scripts/test_with_transformers.sh"
)
def test_the_command_of_the_harness(here: Here, tmp_path: Path) -> None:
    data = tmp_path / "pages.json"
    data.write_text(json.dumps({"page": PAGE}) + "\n")
    shared = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
    }
    for name, task in TASKS.items():  # JSON is YAML
        Path(f"{name}.yaml").write_text(
            json.dumps({"task": name, **shared, **task, "metadata": {"version": 1.0}})
        )
    command = [sys.executable, "-m", "txl.lm_eval", "--model", "txl"]
    command += ["--model_args", f"path={tmp_path / 'run'}"]
    flags = [
        "--tasks",
        "page,choice,write",
        "--include_path",
        tmp_path,
        "--output_path",
        tmp_path / "out.json",
    ]
    offline = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    subprocess.run(
        [*command, *flags],
        env=os.environ | offline,
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    results = json.loads(next(tmp_path.glob("out*.json")).read_text())["results"]
    found = math.log(results["page"]["word_perplexity,none"])
    assert found == pytest.approx(nats_of_eval(here) / len(re.split(r"\s+", PAGE)), rel=1e-6)
    assert results["choice"]["acc,none"] in (0.0, 1.0)
    assert "exact_match,none" in results["write"]
    for wrong, why in (
        ([*command[:-1], "path=nowhere"], "nowhere: no such file or folder"),
        (
            [*command, "--apply_chat_template"],
            "--apply_chat_template: the model's tokenizer has no",
        ),
    ):
        ended = subprocess.run([*wrong, *flags], cwd=ROOT, capture_output=True, text=True)
        assert ended.returncode == 2
        assert ended.stderr.splitlines()[-1].startswith(f"lm_eval.py: {why}")


# extras that are not there


@pytest.mark.parametrize(
    ("module", "library", "there", "message"),
    [
        (
            "txl.hf",
            "transformers",
            None,
            r'needs transformers 5.4 or newer: pip install -e "\.\[hf\]" in a clone',
        ),
        (
            "txl.hf",
            "transformers",
            SimpleNamespace(__version__="4.57.6"),
            r"needs .* 5.4 or newer, this is 4.57.6",
        ),
        (
            "txl.lm_eval",
            "lm_eval.api.model",
            None,
            r'needs lm-evaluation-harness: pip install -e "\.\[lm-eval\]" in a clone',
        ),
    ],
)
def test_a_missing_or_old_library_is_named(
    monkeypatch: pytest.MonkeyPatch, module: str, library: str, there: Any, message: str
) -> None:
    for name in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, there)
    with pytest.raises(ImportError, match=message):
        import_module(module)


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], notices: None
) -> Iterator[Callable[[], Outcome]]:
    """Runs `python -m txl.lm_eval` in this process."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")  # launch sets it
    monkeypatch.setattr(sys, "argv", ["lm_eval.py", "--tasks", "wikitext"])

    def command() -> Outcome:
        with pytest.raises(SystemExit) as stop:
            runpy.run_module("txl.lm_eval", run_name="__main__")
        return Outcome(int(stop.value.code or 0), *map(str, capfd.readouterr()))

    before = signal.getsignal(signal.SIGINT)
    yield command
    signal.signal(signal.SIGINT, before)


def test_the_command_says_so_in_one_line(
    command: Callable[[], Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval.api.model", None)
    monkeypatch.delitem(sys.modules, "txl.lm_eval", raising=False)
    found = command()
    assert found.status == 2
    assert re.fullmatch(r"lm_eval.py: .*pip install .*\n", found.err)


@pytest.mark.filterwarnings("ignore:'txl.lm_eval' found in sys.modules")
@pytest.mark.usefixtures("harness")
def test_an_error_of_the_machine_ends_the_command_in_one_line(
    command: Callable[[], Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, status, line in (
        (
            OSError(errno.ENOSPC, "No space left on device", "out.json"),
            2,
            "out.json: No space left on device; .*",
        ),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
            2,
            "out of memory .*",
        ),
        (UsageError("path is missing"), 2, "path is missing"),
        (KeyboardInterrupt(), 130, "interrupted; .*"),
    ):
        theirs = ModuleType("lm_eval.__main__")
        theirs.__dict__["cli_evaluate"] = unittest.mock.Mock(side_effect=error)
        monkeypatch.setitem(sys.modules, theirs.__name__, theirs)
        found = command()
        assert found.status == status
        assert re.fullmatch(rf"lm_eval.py: {line}\n", found.err)


@pytest.mark.filterwarnings("ignore:'txl.lm_eval' found in sys.modules")
@pytest.mark.usefixtures("harness")
def test_the_command_takes_files_of_parts(
    command: Callable[[], Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The harness reads the command line itself, and does not know --plugin."""
    seen: list[list[str]] = []
    theirs = ModuleType("lm_eval.__main__")
    theirs.__dict__["cli_evaluate"] = lambda: seen.append(sys.argv[1:])
    monkeypatch.setitem(sys.modules, theirs.__name__, theirs)
    monkeypatch.setattr(ADAPTATION_RULES, "_added", {})
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from txl.evaluation.test_time.dynamic import AdaptationRule\n"
        "class Mine(AdaptationRule):\n    name = 'mine'\n    default_lr = 1.0\n"
    )
    monkeypatch.setattr(sys, "argv", ["lm_eval.py", "--plugin", str(mine), "--tasks", "x"])
    assert command().status == 0
    assert seen == [["--tasks", "x"]]


@pytest.mark.parametrize("kind", ["smollm", "llama_2", "llama_3"])
def test_a_pretrained_model_is_asked_as_the_harness_asks_its_own(
    harness: Any, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contexts and continuations are encoded in one, white space between them belongs to the latter, and what the
    tokenizer puts before a page is asked for too."""
    names = {"llama_2": "<s>", "llama_3": "<|begin|>"}
    theirs = write_folder(tmp_path, kind, bos_token=names.get(kind), eos_token="<|end|>")
    vocab = Pretrained.of_folder(tmp_path, 400)
    sizes = {"n_layer": 1, "n_head": 1, "d_head": 8, "d_model": 8, "d_inner": 8}
    model = TransformerXL(ModelConfig(n_token=400, **sizes)).eval()
    lm = LanguageModel(model, Context(tgt_len=8, mem_len=8), vocab)
    monkeypatch.setattr(LanguageModel, "open", lambda *_, **__: lm)
    reader = harness("run")
    whole = theirs.encode("the end of the text").ids
    first = theirs.encode("the end").ids
    bos = [vocab.bos_id]
    only = theirs.encode("the", add_special_tokens=False).ids
    within_a_word = theirs.encode("the en").ids  # whose last token the whole has not
    cases = {
        ("the end ", "of the text"): (first, whole[len(first) :]),
        ("the en", "d of the text"): (within_a_word, whole[len(within_a_word) :]),
        ("", "the"): (bos, only),
        (" ", "the"): (
            theirs.encode("").ids or bos,
            theirs.encode(" the").ids[len(theirs.encode("").ids) :],
        ),
    }
    if kind in names:
        cases[names[kind] + "the end", " of the text"] = (
            theirs.encode(names[kind] + "the end", add_special_tokens=False).ids,
            theirs.encode(names[kind] + "the end of the text", add_special_tokens=False).ids[
                len(theirs.encode(names[kind] + "the end", add_special_tokens=False).ids) :
            ],
        )
    for asked, (before, ids) in cases.items():
        ((nats, _),) = reader.loglikelihood(requests(asked))
        expected = score_text(model, before + ids, lm.reading_context(99), first=len(before))
        assert nats == pytest.approx(-float(expected.sum()), rel=1e-5)
    page = bos + theirs.encode("the end of the text").ids
    (nats,) = reader.loglikelihood_rolling(requests(("the end of the text",)))
    expected = score_text(model, page, lm.reading_context(len(page)))
    assert nats == pytest.approx(-float(expected.sum()), rel=1e-5)
    if kind in names:
        settings = {"max_gen_toks": 5, "temperature": 0.0}
        asked = requests(("the", settings), (names[kind] + "the", settings))
        one, other = reader.generate_until(asked)
        assert one == other


# chats


def with_template(folder: Path, template: str) -> Path:
    """The folder, with a chat template."""
    settings = {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


QUESTION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "the end?"}]


def test_a_chat_is_laid_out_by_the_template_of_the_tokenizer(harness: Any, folder: Path) -> None:
    model = harness(str(with_template(folder, SMOLLM)))
    asked = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nthe end?<|im_end|>\n"
    assert model.apply_chat_template(QUESTION) == asked + "<|im_start|>assistant\n"
    begun = [*QUESTION, {"role": "assistant", "content": "It is "}]
    found = model.apply_chat_template(begun, add_generation_prompt=False)
    assert found == asked + "<|im_start|>assistant\nIt is "
    assert model.chat_template(True) == model.chat_template("default") == SMOLLM
    assert model.chat_template() is None
    other = harness(str(with_template(folder, LLAMA_3))).tokenizer_name
    assert re.fullmatch("txl-[0-9a-f]{16}", other)
    assert other != model.tokenizer_name
    with pytest.raises(UsageError, match=r"--apply_chat_template rag: .* leave the name out"):
        model.chat_template("rag")


def test_a_template_without_a_system_is_asked_without_it(harness: Any, folder: Path) -> None:
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    model = harness(str(with_template(folder, refuses + SMOLLM)))
    assert model.apply_chat_template(QUESTION) == model.apply_chat_template(QUESTION[1:])
    with pytest.raises(UsageError, match="no system"):
        model.apply_chat_template(QUESTION[:1])


def test_without_a_template_there_is_no_chat(harness: Any, folder: Path) -> None:
    model = harness(str(folder))
    for ask in (
        lambda: model.chat_template(True),
        lambda: model.apply_chat_template(QUESTION),
        lambda: model.tokenizer_name,
    ):
        with pytest.raises(UsageError, match=r"--apply_chat_template: .* has no chat template"):
            ask()


def test_an_answer_ends_with_the_turn(harness: Any, folder: Path) -> None:
    model = harness(str(with_template(folder, SMOLLM)))
    tokenizer = model.lm.tokenizer
    tokenizer.special = replace(tokenizer.special, stop_ids=())
    asked = requests(("the end", {"max_gen_toks": 30, "temperature": 0.0}))
    (whole,) = model.generate_until(asked)
    letter = next(letter for letter in whole[1:] if letter.isascii() and letter.isalnum())
    tokenizer.special = replace(tokenizer.special, eos_id=tokenizer.index[letter])
    assert model.generate_until(asked) == [whole[: whole.index(letter)]]


def test_special_tokens_of_an_answer_are_no_text(
    harness: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = harness(str(folder))
    said = "It <|begin|>is <|end|>.", []
    monkeypatch.setattr(LanguageModel, "text_and_ids", lambda *_, **__: said)
    assert model.generate_until(requests(("the end", {}))) == ["It is ."]


def test_a_character_that_is_cut_is_marked_as_in_the_models_of_the_harness(
    harness: Any, folder: Path
) -> None:
    model = harness(str(folder))
    tokenizer = model.lm.tokenizer
    (first,) = (i for i, word in enumerate(tokenizer.words) if word == "\u00e2")  # byte E2 of a €
    with torch.no_grad():
        for name, weight in model.lm.model.named_parameters():
            weight.fill_(float("norm" in name))
        model.lm.model.word_emb.tables[0].fill_(1.0)
        model.lm.model.softmax.tables[0][first] = 2.0
    asked = requests(("the end", {"max_gen_toks": 1, "temperature": 0.0}))
    (text,) = model.generate_until(asked)
    assert text == tokenizer.decoded([first]) == "\ufffd"


CHATS: dict[str, dict[str, Any]] = {
    "choice": {
        "output_type": "multiple_choice",
        "doc_to_choice": ["the text", "a line", "the first of 2"],
        "doc_to_target": 1,
    },
    "begun": {
        "output_type": "multiple_choice",
        "doc_to_choice": ["the text", "a line"],
        "doc_to_target": 0,
        "gen_prefix": "It is",
    },
    "write": {
        "output_type": "generate_until",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 12},
        "metric_list": [{"metric": "exact_match"}],
    },
}


def evaluated(model: str, settings: dict[str, Any], here: Path, **how: Any) -> dict[str, Any]:
    """Of each request of CHATS: what was asked, and the answer."""
    shared = {
        "dataset_path": "json",
        "dataset_kwargs": {
            "data_files": {"test": str(here / "questions.json")},
            "cache_dir": str(here / "cache"),
        },
        "test_split": "test",
        "doc_to_text": "{{question}}",
        "num_fewshot": 2,
    }
    found = import_module("lm_eval").simple_evaluate(
        model,
        model_args=settings,
        tasks=[{"task": name, **shared, **task} for name, task in CHATS.items()],
        bootstrap_iters=0,
        device="cpu",
        **how,
    )
    assert found is not None
    return {
        f"{name} {sample['doc_id']}": (sample["arguments"], sample["resps"])
        for name, samples in found["samples"].items()
        for sample in samples
    }


@pytest.mark.slow
@pytest.mark.skipif(
    not IS_INSTALLED, reason="lm_eval is not installed; run scripts/test_with_transformers.sh"
)
@pytest.mark.parametrize("is_multiturn", [True, False])
def test_chats_are_those_of_the_model_of_the_harness(folder: Path, is_multiturn: bool) -> None:
    here = with_template(folder, SMOLLM).resolve().parent
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 999}))
    lines = [{"question": f"Is {i} the end?", "answer": "the text"} for i in range(4)]
    (here / "questions.json").write_text("\n".join(map(json.dumps, lines)))
    import_module("txl.lm_eval")
    how = {
        "apply_chat_template": True,
        "system_instruction": "Be brief.",
        "fewshot_as_multiturn": is_multiturn,
    }
    ours = evaluated("txl", {"path": str(folder)}, here, **how)
    theirs = evaluated("hf", {"pretrained": str(folder), "dtype": "float32"}, here, **how)
    assert ours.keys() == theirs.keys()
    for name, (asked, answers) in ours.items():
        assert asked == theirs[name][0]
        for (found,), (expected,) in zip(answers, theirs[name][1], strict=True):
            if "write" in name:
                assert found == expected
                assert not expected[len(found) :].strip(" \ufffd")
            else:
                assert found == (pytest.approx(expected[0], rel=1e-5), expected[1])
