"""A folder of Hugging Face from beginning to end: scored, generated, trained with another memory, written back."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import txl
from tests.cli.conftest import call, entry_points
from tests.convert.test_llama import KINDS, state_of, write
from tests.data.tokenizer_files import TEXT, write_folder
from tests.hf.llamas import SIZES
from txl.config import UsageError
from txl.convert import convert
from txl.data_utils.subwords import Subwords
from txl.language.model import LanguageModel

tokenizers = pytest.importorskip("tokenizers")
__all__ = ["call", "entry_points"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, and a text beside it."""
    monkeypatch.chdir(tmp_path)
    theirs = write_folder(Path("model"), "smollm", eos_token="<|im_end|>")
    n_token = theirs.get_vocab_size() + 3  # tables are larger than vocabularies
    settings = KINDS["smollm"]["config"] | {"vocab_size": n_token}
    state = {name: tensor.float() for name, tensor in state_of(settings).items()}
    write(Path("model"), settings, state)
    Path("text").mkdir()
    for split in ("train", "valid", "test"):
        Path("text", f"{split}.txt").write_text(TEXT)
    return Path("model")


@pytest.fixture
def done(call: Callable[..., Any]) -> Callable[[str], None]:
    """Runs a program, which must succeed."""

    def run(line: str) -> None:
        outcome = call(*line.split())
        assert outcome.status == 0, outcome

    return run


def test_a_loaded_folder_reads_to_its_trained_length_and_goes_on_with_sinks(folder: Path) -> None:
    lm = txl.load(folder)
    assert (lm.model_config.memory, lm.model_config.n_sink) == ("sinks", 4)
    n_trained = SIZES["max_position_embeddings"]
    assert 4 + lm.context.mem_len + lm.context.tgt_len == n_trained
    whole = txl.load(folder, memory="fifo")
    near, far = "the text " * 10, "the end of the first " * 60
    assert lm.score(near).nats == pytest.approx(whole.score(near).nats, rel=1e-6)
    assert lm.score(far).nats != pytest.approx(whole.score(far).nats, rel=1e-6)
    assert all(map(math.isfinite, lm.score(far).nats))
    assert lm.generate("the end", length=200, seed=1)


def test_the_programs_take_it(folder: Path, done: Callable[[str], None]) -> None:
    done("eval --work_dir model --data text --split test --json plain.json")
    (row,) = json.loads(Path("plain.json").read_text())["rows"]
    ids = txl.load(folder).encode(TEXT)
    assert row["tokens"] == len(ids) - 1
    done("generate --work_dir model --prompt end --length 4")
    done(
        "train --init_from model --data text --work_dir tuned --memory infini --train memory --tgt_len 16"
        " --mem_len 16 --batch_size 2 --max_step 2 --eval_interval 2 --lr 0.1 --sample_length 0"
    )
    tuned = txl.load("tuned")
    assert (tuned.model_config.memory, tuned.model_config.memory_gate) == ("infini", "tanh")
    before = txl.load(folder).model.state_dict()
    for name, weight in tuned.model.state_dict().items():
        assert (".memory." in name) != torch.equal(weight, before.get(name, weight + 1))
    assert txl.load("tuned").generate("the end", length=3, seed=1) is not None


def test_a_kept_memory_is_that_of_a_reading(folder: Path, done: Callable[[str], None]) -> None:
    """With the memory that it was read with, and with no other, also where that is exchanged."""
    done("read text/train.txt --work_dir model --memory sinks --n_sink 2 --to two.memory")
    done("score text/test.txt --work_dir model --memory sinks --n_sink 2 --memory_file two.memory")
    lm = txl.load(folder, memory="sinks", n_sink=2)
    memory = txl.load_memory("two.memory")
    one_piece = lm.score(" the end", TEXT).total_nats
    assert lm.score(" the end", memory=memory).total_nats == pytest.approx(one_piece, rel=1e-5)
    lm.model.remember("sinks", n_sink=3)
    with pytest.raises(UsageError, match="with other weights or another --memory"):
        lm.score(" the end", memory=memory)


@pytest.mark.parametrize("program", ["score --text", "read --to two.memory --text", "eval --text"])
def test_running_text_is_not_split_into_words_for_it(
    folder: Path, call: Callable[..., Any], program: str
) -> None:
    outcome = call(*f"{program} text/test.txt --work_dir model --tokenise".split())
    assert outcome.status == 2
    assert "--tokenise: the model's vocabulary is not of words" in outcome.err
    assert not Path("two.memory").exists()


def test_it_goes_back_as_it_came(folder: Path, done: Callable[[str], None]) -> None:
    done("convert model run")
    done("convert run back --to huggingface")
    ours, back = txl.load(folder), txl.load("back")
    assert (back.model_config, back.context) == (ours.model_config, ours.context)
    expected = ours.model.state_dict()
    assert all(torch.equal(x, expected[name]) for name, x in back.model.state_dict().items())
    assert back.encode(TEXT) == ours.encode(TEXT)
    assert back.tokenizer.eos_id == ours.tokenizer.eos_id
    card = Path("back/README.md").read_text()
    assert "Transformer-XL" not in card.partition("tags:")[2].partition("\n")[2]


@pytest.mark.parametrize("ends", [True, False])
def test_subwords_of_our_own_are_read_there_as_here(tmp_path: Path, ends: bool) -> None:
    """A text begins after the token that ends a document, with which one ends there; without such a
    token after a line break, with which none ends."""
    tokenizer = Subwords.trained([TEXT.encode() * 20], 300)
    if not ends:
        tokenizer = Subwords(tokenizer.content.replace('"<eos>"', '"<pad>"'))
    settings = KINDS["llama"]["config"] | {"vocab_size": len(tokenizer)}
    found = convert(write(tmp_path / "theirs", settings, state_of(settings)))
    record = {"data": {"data": ["text"], "dataset": "bpe"}}
    lm = LanguageModel(found.model.float(), found.context, tokenizer, record)
    lm.write(tmp_path / "there", "huggingface")
    back = txl.load(tmp_path / "there")
    assert back.score(TEXT).tokens == lm.score(TEXT).tokens
    assert back.score(TEXT).nats == pytest.approx(lm.score(TEXT).nats, rel=1e-5)
    config = json.loads((tmp_path / "there" / "config.json").read_text())
    end_id = tokenizer.index.get("<eos>")
    assert (config["bos_token_id"], config["eos_token_id"]) == (end_id, end_id)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "there" / "tokenizer.json"))
    assert theirs.encode("the end").ids == [tokenizer.eos_id, *lm.encode("the end")]


def test_tokens_that_the_model_has_no_rows_for_are_left_out(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a padding token that was added to the tokenizer alone."""
    n_token = txl.load(folder).model_config.n_token
    content = json.loads((folder / "tokenizer.json").read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    pad = {"id": n_token, "content": "[PAD]", "special": True, **flags}
    content["added_tokens"].append(pad)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert "[PAD]" not in txl.load(folder).tokenizer.words
    assert "added to the tokenizer, not to the model: [PAD]" in caplog.text


def test_sampling_of_its_own_counts_where_nothing_else_is_given(
    folder: Path, call: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    greedy = txl.load(folder).generate("the end", length=12, temperature=0)
    settings: dict[str, Any] = {"do_sample": True, "top_k": 1, "temperature": 0.7}
    path = folder / "generation_config.json"
    path.write_text(json.dumps(settings))
    txl.load(folder).write("run")
    txl.load(folder).write("there", to="huggingface")
    for place in (folder, "run", "there"):
        lm = txl.load(place)
        texts = {lm.generate("the end", length=12, seed=seed) for seed in range(3)}
        assert texts == {greedy}, place
        assert lm.generate("the end", length=12, seed=1, top_k=0) != greedy
        words = ["generate", "--work_dir", str(place), "--prompt", "the end", "--length", "12"]
        assert call(*words).out == f"the end{greedy}\n"
        assert call(*words, "--top_k", "0").out != f"the end{greedy}\n"
        assert call(*words, "--num_beams", "2").status == 0
    assert any("temperature 0.7, top_k 1: as the model" in said for said in caplog.messages)
    path.write_text(json.dumps(settings | {"do_sample": False}))
    lm = txl.load(folder)
    assert len({lm.generate("the end", length=12, seed=seed) for seed in range(3)}) > 1
    for wrong in ({"temperature": "hot"}, {"top_p": 2}, {"top_k": 0.5}, {"temperature": -1}):
        path.write_text(json.dumps(settings | wrong))
        with pytest.raises(UsageError, match=rf"generation_config\.json: {next(iter(wrong))} "):
            txl.load(folder)


@pytest.mark.parametrize("ends", [None, 1, [1, 3]])
def test_texts_end_there_with_the_tokens_that_end_them_here(folder: Path, ends: Any) -> None:
    """Be they others than the tokenizer's `eos_token`, or none."""
    if ends is None:
        (folder / "tokenizer_config.json").write_text("{}")
    settings = json.loads((folder / "config.json").read_text())
    said = {"bos_token_id": None, "eos_token_id": ends}
    (folder / "config.json").write_text(json.dumps(settings | said))
    lm = txl.load(folder)
    lm.write("back", "huggingface")
    written = json.loads(Path("back/config.json").read_text())
    assert said == {name: written[name] for name in said}
    assert txl.load("back").tokenizer.special == lm.tokenizer.special


def test_a_memory_with_weights_is_not_written_for_transformers(folder: Path) -> None:
    made = txl.load(folder)
    made.model.remember("infini")
    with pytest.raises(UsageError, match="its weights have no place in transformers"):
        made.write("there", "huggingface")
    assert not Path("there").exists()
