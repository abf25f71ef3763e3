"""`python -m txl.convert --to`: what is written is read again, with the same weights and figures."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import txl
from tests.cli.conftest import change_weights
from tests.golden.test_model import Golden
from txl.checkpoint import open_checkpoint
from txl.config import Context, ModelConfig, UsageError
from txl.convert import convert
from txl.convert.huggingface import (
    config_for_huggingface,
    configs_of,
    from_huggingface,
    read_huggingface,
    second_names,
    to_huggingface,
)
from txl.data_utils.detokenise import decoder
from txl.data_utils.free_text import encode_text
from txl.data_utils.tokenizers.characters import Characters
from txl.data_utils.tokenizers.lower import LowerVocab
from txl.data_utils.tokenizers.sentences import SentenceVocab
from txl.data_utils.tokenizers.subwords import Subwords
from txl.data_utils.tokenizers.symbols import ALL_BYTES, Symbols
from txl.data_utils.tokenizers.words import Vocab
from txl.language.export import write_huggingface, write_original
from txl.language.trained import TrainedModel
from txl.model.transformer import TransformerXL

HF = Path(__file__).parents[1] / "golden" / "hf"
TEXT = "bab ded bab ded ded bab\n"


@pytest.mark.parametrize("to", ["txl", "huggingface", "original"])
def test_a_run_written_for_others_has_the_same_figures(
    run_folder: Path, tmp_path: Path, call: Callable[..., Any], to: str
) -> None:
    folder = tmp_path / "exported"
    outcome = call("convert", run_folder, folder, "--to", to)
    assert (outcome.status, outcome.err) == (0, "")
    lm, again = txl.load(run_folder), txl.load(folder)
    assert again.score(TEXT * 3).nats == lm.score(TEXT * 3).nats
    assert again.tokenizer.words == lm.tokenizer.words
    assert again.context == lm.context
    card = (folder / "README.md").read_text()
    assert "2 layers, d_model 16" in card
    assert "--tgt_len 8" in card
    assert "Perplexity of the valid split" in card
    assert not any(path.name.startswith(".tmp") for path in tmp_path.iterdir())


def test_a_slim_run_is_evaluated_and_can_be_converted_again(
    run_folder: Path, tmp_path: Path, call: Callable[..., Any]
) -> None:
    assert call("convert", next(run_folder.glob("step_*")), tmp_path / "slim").status == 0
    tables = [call("eval", "--work_dir", run).out for run in (tmp_path / "slim", run_folder)]
    slim, whole = ([line.split()[:6] for line in table.splitlines() if line.startswith("test ")] for table in tables)
    assert slim == whole != []
    assert call("convert", tmp_path / "slim", tmp_path / "hf", "--to", "huggingface").status == 0
    assert call("convert", tmp_path / "hf", tmp_path / "back").status == 0
    assert txl.load(tmp_path / "back").score(TEXT).nats == txl.load(run_folder).score(TEXT).nats


def test_the_files_are_those_of_transformers(run_folder: Path, tmp_path: Path, call: Callable[..., Any]) -> None:
    assert call("convert", run_folder, tmp_path / "hf", "--to", "huggingface").status == 0
    names = {path.name for path in (tmp_path / "hf").iterdir()}
    assert names == {"config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json", "README.md"}
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (config["model_type"], config["eos_token_id"], config["mem_len"]) == ("transfo-xl", 0, 8)


@pytest.mark.parametrize("name", ["adaptive_div1_emb16", "adaptive_div2_noprojtie", "attn1", "attn2", "attn3", "xl"])
def test_each_kind_of_the_2019_code_goes_there_and_back(name: str, tmp_path: Path) -> None:
    model, context = Golden(name).model()
    vocab = Vocab([f"w{i}" for i in range(model.config.n_token)])
    write_original(TrainedModel(model, context, vocab), tmp_path)
    back = convert(tmp_path)
    weights = back.model.state_dict()
    assert all(torch.equal(weights[key], tensor) for key, tensor in model.state_dict().items())
    assert back.words == vocab.words
    if name not in ("attn1", "attn3"):
        assert back.context == context


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (5, "damaged (holds no JSON object"),
        ({"tie_projs": 5}, "damaged (tie_projs is '5'"),
        ({"tgt_len": "x"}, "damaged (tgt_len is 'x'"),
        ({"dropout": 7.0}, "damaged (dropout is no probability)"),
        ({"attn_type": 3}, "attn_type: 3 is given, but the weights are those of attn_type 0"),
    ],
)
def test_damaged_arguments_are_refused(tmp_path: Path, arguments: Any, message: str) -> None:
    model, context = Golden("xl").model()
    vocab = Vocab([f"w{i}" for i in range(model.config.n_token)])
    write_original(TrainedModel(model, context, vocab), tmp_path)
    held = torch.load(tmp_path / "model.pt")
    whole = held["arguments"] | arguments if isinstance(arguments, dict) else arguments
    torch.save({"arguments": whole, "state_dict": held["state_dict"]}, tmp_path / "model.pt")
    with pytest.raises(UsageError, match=re.escape(message)):
        convert(tmp_path)


_TEXT = "The cat, it sat. Bab\n"
_WORDS = ["<eos>", "<unk>", "the", "cat", ",", "it", "sat", ".", "cat,", "sat.", "bab"]


def subwords() -> Subwords:
    pytest.importorskip("tokenizers")
    return Subwords.trained([_TEXT.encode() * 9], 260)


VOCABULARIES = {
    "text": lambda: Vocab(_WORDS),
    "ptb": lambda: LowerVocab(_WORDS),
    "lm1b": lambda: SentenceVocab(["<S>", "<UNK>", *_WORDS[2:]]),
    "characters": lambda: Characters(["\n", "<unk>", *dict.fromkeys(_TEXT.strip())]),
    "bytes": lambda: Symbols(ALL_BYTES),
    "enwik8": lambda: Symbols(list(dict.fromkeys(str(byte) for byte in _TEXT.encode()))),
    "bpe": subwords,
}


def pretrained(dataset: str, vocab: Vocab) -> TrainedModel:
    sizes = {"n_layer": 1, "n_head": 1, "d_head": 2, "d_model": 4, "d_inner": 4}
    model = TransformerXL(ModelConfig(n_token=len(vocab), **sizes))
    return TrainedModel(model, Context(), vocab, {"data": {"data": "my/text", "dataset": dataset}})


@pytest.mark.parametrize(
    ("write", "dataset"), [(write_huggingface, "text"), *((write_original, name) for name in VOCABULARIES)]
)
def test_text_is_read_as_before_the_export(write: Callable[..., None], dataset: str, tmp_path: Path) -> None:
    vocab = VOCABULARIES[dataset]()
    write(pretrained(dataset, vocab), tmp_path)
    lm = txl.load(tmp_path)
    assert type(lm.tokenizer) is type(vocab)
    assert lm.encode(_TEXT) == encode_text(_TEXT, vocab, name="", running=dataset != "text").ids
    ids = lm.encode(_TEXT)
    assert lm.decode(ids) == "".join(map(decoder(vocab, tokenised=dataset != "text"), ids))


def test_an_export_in_subwords_is_converted_again_and_names_its_text(tmp_path: Path, call: Callable[..., Any]) -> None:
    vocab = subwords()
    write_original(pretrained("bpe", vocab), tmp_path)
    assert call("convert", tmp_path, tmp_path / "run", "--data", "other/text").status == 0
    record = open_checkpoint(tmp_path / "run").record
    assert (record["data"]["data"], record["data"]["dataset"]) == ("other/text", "bpe")
    assert txl.load(tmp_path / "run").encode(_TEXT) == txl.load(tmp_path).encode(_TEXT)
    refused = call("convert", tmp_path, tmp_path / "b", "--dataset", "ptb")
    assert "--dataset ptb: " in refused.err
    assert "was trained on bpe; leave the flag out" in refused.err
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(UsageError, match=r"no vocabulary of --dataset bpe \(.*tokenizer\.json"):
        txl.load(tmp_path)


@pytest.mark.parametrize("said", [5, {"dataset": "x"}, {"dataset": "text", "new": 1}])
def test_damaged_words_on_the_text_are_refused(said: Any, tmp_path: Path) -> None:
    write_huggingface(pretrained("text", VOCABULARIES["text"]()), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"txl_data": said}))
    with pytest.raises(UsageError, match="what it says of its text is damaged"):
        txl.load(tmp_path)


def test_a_training_goes_on_from_an_export_in_lower_case(tmp_path: Path, call: Callable[..., Any]) -> None:
    write_original(pretrained("ptb", VOCABULARIES["ptb"]()), tmp_path)
    (tmp_path / "text").mkdir()
    for split in ("train", "valid"):
        (tmp_path / "text" / f"{split}.txt").write_text("The cat sat .\n" * 300)
    flags = ["--data", tmp_path / "text", "--dataset", "ptb", "--work_dir", tmp_path / "run", "--max_step", 1]
    outcome = call("train", "--init_from", tmp_path / "model.pt", *flags, "--batch_size", 2, "--sample_length", 0)
    assert (outcome.status, outcome.complaints) == (0, [])
    assert txl.load(tmp_path / "run").encode("The Cat") == [2, 3]


@pytest.mark.parametrize("name", ["hf_div2", "x_hf_div1_emb16_tie_r"])
def test_tensors_and_settings_for_hugging_face_are_its_own(name: str) -> None:
    theirs, config = read_huggingface(HF / name)
    model, context = from_huggingface(theirs, config)
    ours = to_huggingface(model)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], tensor) for key, tensor in theirs.items())
    assert second_names(model.config) <= ours.keys()
    written = config_for_huggingface(model, context)
    assert configs_of(written) == (model.config, context)
    assert {key: config[key] for key in written.keys() & config.keys()} | written == written


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"position": "t5"}, "--position t5: Hugging Face has no such model"),
        ({"activation": "gelu"}, "--activation gelu: Hugging Face has no such model"),
        ({"recurrence": "same"}, "--recurrence same: Hugging Face has no such model"),
    ],
)
def test_hugging_face_has_one_kind_of_model(settings: dict[str, Any], message: str) -> None:
    sizes = {"n_token": 9, "n_layer": 1, "n_head": 1, "d_head": 2, "d_model": 4, "d_inner": 4}
    with pytest.raises(UsageError, match=message):
        to_huggingface(TransformerXL(ModelConfig(**sizes, **settings)))


@pytest.mark.parametrize("to", ["huggingface", "original"])
def test_what_the_other_program_lacks_is_refused_and_nothing_written(
    training: list[str], tmp_path: Path, call: Callable[..., Any], to: str
) -> None:
    assert call("train", *training, "--work_dir", tmp_path / "run", "--position", "rotary").status == 0
    outcome = call("convert", tmp_path / "run", tmp_path / "there", "--to", to)
    assert (outcome.status, outcome.err.count("\n")) == (2, 1)
    assert "--position rotary: " in outcome.err
    assert not (tmp_path / "there").exists()
    assert not list(tmp_path.glob(".tmp*"))


def test_dropout_of_the_training_is_exported(training: list[str], tmp_path: Path, call: Callable[..., Any]) -> None:
    assert call("train", *training, "--work_dir", tmp_path / "run", "--dropout", 0.3, "--dropatt", 0.2).status == 0
    assert call("convert", tmp_path / "run", tmp_path / "slim").status == 0
    for source in ("run", "slim"):
        for to in ("huggingface", "original"):
            assert call("convert", tmp_path / source, tmp_path / f"{source}_{to}", "--to", to).status == 0
        config = json.loads((tmp_path / f"{source}_huggingface" / "config.json").read_text())
        arguments = torch.load(tmp_path / f"{source}_original" / "model.pt")["arguments"]
        assert [(said["dropout"], said["dropatt"]) for said in (config, arguments)] == [(0.3, 0.2)] * 2
    assert call("convert", tmp_path / "run_original", tmp_path / "hf", "--to", "huggingface").status == 0
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["dropatt"] == 0.2


def test_flags_that_a_run_answers_itself_are_refused(
    run_folder: Path, tmp_path: Path, call: Callable[..., Any]
) -> None:
    outcome = call("convert", run_folder, tmp_path / "new", "--dataset", "text")
    assert (outcome.status, outcome.err.count("\n")) == (2, 1)
    assert "--dataset: " in outcome.err


def test_weights_in_16_bits_take_half_the_space_and_are_used_in_float32(
    run_folder: Path, tmp_path: Path, call: Callable[..., Any]
) -> None:
    folder = tmp_path / "half"
    outcome = call("convert", run_folder, folder, "--dtype", "bfloat16", "--licence", "cc-by-sa-4.0")
    assert outcome.status == 0
    weights = next(folder.glob("step_*/model.safetensors"))
    assert weights.stat().st_size < 0.6 * next(run_folder.glob("step_*/model.safetensors")).stat().st_size
    assert hashlib.sha256(weights.read_bytes()).hexdigest() in outcome.out
    whole, half = (dict(txl.load(path).model.named_parameters()) for path in (run_folder, folder))
    for name, weight in whole.items():
        assert torch.equal(half[name], weight.bfloat16().float())
    card = (folder / "README.md").read_text()
    assert "license: cc-by-sa-4.0\n---" in card
    assert "`cc-by-sa-4.0`." in card


def test_weights_beyond_float16_are_refused(run_folder: Path, tmp_path: Path, call: Callable[..., Any]) -> None:
    shutil.copytree(run_folder, tmp_path / "large")
    change_weights(tmp_path / "large", lambda weight: weight + 1e6)
    outcome = call("convert", tmp_path / "large", tmp_path / "half", "--dtype", "float16")
    assert outcome.status == 2
    assert "exceed its range; use bfloat16" in outcome.err
    assert not (tmp_path / "half").exists()
