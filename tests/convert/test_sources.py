"""Checkpoints of the 2019 code, of NVIDIA's and of Hugging Face's, as they lie on people's disks."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import txl
from tests.convert.pickled import foreign, save_nvidia, save_original
from tests.golden.test_model import Golden
from txl.config import UsageError
from txl.convert import convert, from_huggingface, to_kimiyoung
from txl.convert.huggingface import read_huggingface
from txl.evaluation.conventions import ZeroMemory

HF = Path(__file__).parents[1] / "golden" / "hf"
KINDS = ["adaptive_div1", "adaptive_div1_emb16", "adaptive_div2_noprojtie", "attn1", "attn2", "attn3", "xl_pre_lnorm"]


@pytest.mark.parametrize("name", ["hf_div2", "x_hf_div1_emb16_tie_r"])
@pytest.mark.parametrize(("prefix", "dtype", "near"), [("", torch.float32, 1e-5), ("f64/", torch.float64, 1e-9)])
def test_hugging_faces_losses(name: str, prefix: str, dtype: torch.dtype, near: float) -> None:
    golden = np.load(HF / name / "golden.npz")
    model, context = from_huggingface(*read_huggingface(HF / name))
    model = model.to(dtype).eval()
    reader = ZeroMemory(model, context.mem_len)
    memory = reader.fresh_memory(2)
    for i in range(3):
        input_BT, target_BT = (torch.from_numpy(golden[f"seg{i}/{key}"]) for key in ("input_ids", "target"))
        hidden_BTD, after = model(input_BT, memory, context)
        nll_BT, memory = reader.nll(input_BT, target_BT, memory, context)
        for ours, key in ((nll_BT, "nll"), (model.log_prob(hidden_BTD[:, -1]), "logprob_last")):
            theirs = torch.from_numpy(golden[f"{prefix}seg{i}/{key}"])
            torch.testing.assert_close(ours, theirs.to(dtype), rtol=0, atol=near)
        assert after.length == memory.length


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
@pytest.mark.parametrize("name", KINDS)
def test_a_model_pt_is_read_without_the_2019_code(name: str, zipped: bool, tmp_path: Path) -> None:
    golden = Golden(name)
    model, _ = golden.model()
    save_original(tmp_path / "model.pt", to_kimiyoung(model), golden.config["model"], zipped=zipped)
    converted = convert(tmp_path)
    assert converted.kind == "kimiyoung/transformer-xl"
    has_projs = len(model.word_emb.projs) > 0  # without projections none is tied
    assert has_projs <= (converted.model.config == model.config)
    assert converted.context.same_length == golden.config["model"]["same_length"]
    weights = converted.model.state_dict()
    assert all(torch.equal(weights[key], tensor) for key, tensor in model.state_dict().items())


def test_a_model_in_data_parallel_is_read(tmp_path: Path) -> None:
    golden = Golden("xl")
    save_original(tmp_path / "model.pt", to_kimiyoung(golden.model()[0]), golden.config["model"], parallel=True)
    assert convert(tmp_path / "model.pt").model.config == golden.model()[0].config


def test_nvidias_checkpoint(tmp_path: Path) -> None:
    """Its softmax has names of its own, and it lists shared projections once more."""
    golden = Golden("adaptive_div2")
    model, _ = golden.model()
    save_nvidia(tmp_path / "checkpoint_best.pt", model, golden.config["model"], [f"w{i}" for i in range(200)])
    converted = convert(tmp_path)
    assert (converted.kind, converted.words[:2]) == ("NVIDIA DeepLearningExamples", ["w0", "w1"])
    weights = converted.model.state_dict()
    assert all(torch.equal(weights[key], tensor) for key, tensor in model.state_dict().items())


@pytest.fixture
def hf(tmp_path: Path) -> Path:
    return Path(shutil.copytree(HF / "hf_div2", tmp_path / "hf"))


def test_safetensors_are_read_too(hf: Path) -> None:
    state, _ = read_huggingface(hf)
    (hf / "pytorch_model.bin").unlink()
    save_file(
        {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in state.items()},
        hf / "model.safetensors",
    )
    weights, expected = convert(hf).model.state_dict(), convert(HF / "hf_div2").model.state_dict()
    assert all(torch.equal(weights[key], tensor) for key, tensor in expected.items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_layer": 10**9}, "--n_layer 1000000000: must be at least 1 and at most 4096"),
        ({"cutoffs": list(range(1, 200))}, "describes a larger model than the"),
        ({"d_inner": 10**9}, "describes a larger model than the"),
        ({"n_layer": 2}, "no weights of the model that the configuration describes"),
        ({"n_layer": 4}, "missing from the weights"),
        ({"d_inner": 63}, "has the shape of"),
        ({"model_type": "gpt2"}, "model_type gpt2; only transfo-xl is read"),
        ({"attn_type": 1}, "attn_type 1: only 0 works there"),
        ({"layer_norm_epsilon": 1e-12}, "layer_norm_epsilon 1e-12: only 1e-05 works there"),
        ({"tie_projs": 5}, "config.json: tie_projs is '5', which is not of type"),
        ({"dropout": "much"}, "config.json: dropout is 'much', which is not of type float"),
        ({"dropatt": 1.5}, "config.json: dropatt 1.5 is no probability"),
        ({"vocab_size": "many"}, "vocab_size many is no whole number"),
        ({"untie_r": False}, "missing from the weights"),
        ({"tie_projs": [True] * 4}, "differs from word_emb.emb_projs.0"),
    ],
)
def test_a_configuration_that_does_not_fit_the_weights_is_refused(
    hf: Path, change: dict[str, object], message: str
) -> None:
    path = hf / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UsageError, match=message):
        convert(hf)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("vocab.txt", "<eos> 12\na\n\nb\n", ["<eos>", "a", "b"]),
        ("vocab.json", '{"b": 2, "<eos>": 0, "a": 1}', ["<eos>", "a", "b"]),
        ("vocab.json", '["<eos>", "a", "b"]', ["<eos>", "a", "b"]),
    ],
)
def test_words_beside_the_weights_are_found(hf: Path, name: str, content: str, words: list[str]) -> None:
    (hf / name).write_text(content)
    assert convert(hf).words == words


def test_pickled_vocabularies(hf: Path) -> None:
    torch.save({"idx2sym": ["<eos>", "ä"], "sym2idx": {}}, hf / "vocab.bin")
    assert convert(hf).words == ["<eos>", "ä"]
    with foreign("data_utils", "Corpus", base=object) as classes, foreign("vocabulary", "Vocab", base=object) as more:
        corpus = classes["Corpus"]()
        corpus.vocab = more["Vocab"]()
        corpus.vocab.idx2sym = ["<eos>", "\xc3\xbc"]  # as Python 2 has pickled it
        torch.save(corpus, hf / "cache.pt")
    assert convert(hf, hf / "cache.pt").words == ["<eos>", "\u00fc"]


def test_a_tensorflow_checkpoint_is_told_where_its_weights_are(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text("model_checkpoint_path: x")
    with pytest.raises(UsageError, match="transfo-xl/transfo-xl-wt103"):
        convert(tmp_path)


def test_a_converted_run_is_evaluated_and_generates(hf: Path, tmp_path: Path, call: Callable[..., Any]) -> None:
    words = ["<eos>", "<unk>", *(f"w{i}" for i in range(198))]
    (hf / "vocab.txt").write_text("\n".join(words) + "\n")
    text = tmp_path / "text"
    text.mkdir()
    for split in ("valid", "test"):
        (text / f"{split}.txt").write_text(" w3 w4 w5 \n w6 <unk> w8 \n" * 20)
    run = tmp_path / "run"
    assert call("convert", hf, run, "--explain").status == 0
    flags = ["--work_dir", run, "--data", text, "--dataset", "text", "--convention", "huggingface", "--batch_size", 2]
    assert call("eval", *flags, "--json", tmp_path / "result.json").status == 0
    assert json.loads((tmp_path / "result.json").read_text())["rows"][0]["tokens"] == 158
    assert call("generate", "--work_dir", run, "--length", 5).status == 0
    again = call("convert", hf, run)
    assert (again.status, again.err) == (2, f"convert.py: {run}: is not empty; name another folder\n")


@pytest.mark.parametrize(("n", "message"), [(199, "199 words, the model has 200"), (0, "holds no vocabulary")])
def test_a_vocabulary_that_does_not_fit_is_refused(
    hf: Path, tmp_path: Path, call: Callable[..., Any], n: int, message: str
) -> None:
    if n:
        (hf / "vocab.txt").write_text("".join(f"w{i}\n" for i in range(n)))
    outcome = call("convert", hf, tmp_path / "run")
    assert outcome.status == 2
    assert message in outcome.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer_config.json", {"added_tokens_decoder": {"0": {"content": "<eos>"}, "199": {"content": "<pad>"}}}),
        ("added_tokens.json", {"<pad>": 199}),
    ],
)
def test_tokens_added_to_a_hugging_face_tokenizer_are_words(file: str, content: Any, tmp_path: Path) -> None:
    folder = shutil.copytree(HF / "hf_div2", tmp_path / "hf")
    (folder / "vocab.txt").write_text("".join(f"{w}\n" for w in ["<eos>", "<unk>", *(f"w{i}" for i in range(197))]))
    with pytest.raises(UsageError, match="has 199 words, the model has 200"):
        txl.load(folder)
    (folder / file).write_text(json.dumps(content))
    assert txl.load(folder).tokenizer.words[198:] == ["w196", "<pad>"]
    (folder / file).write_text("[3]")
    with pytest.raises(UsageError, match=file):
        txl.load(folder)
