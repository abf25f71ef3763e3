"""Checkpoints of the 2019 code, of NVIDIA's and of Hugging Face's, as they lie on people's disks."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import txl
from tests.cli.conftest import Here
from tests.convert.conftest import HF, WORDS, write_words
from tests.convert.pickled import foreign, save_nvidia, save_original
from tests.golden.test_model import Golden
from txl.config import Context, ModelConfig, UsageError
from txl.convert import convert, from_huggingface, from_kimiyoung, to_kimiyoung
from txl.convert.huggingface import configs_of, read_huggingface
from txl.convert.kimiyoung import arguments_for_kimiyoung
from txl.convert.tensor_files import tensors_of, weights_file
from txl.data_utils.tokens import Vocab
from txl.evaluation.conventions import ZeroMemory
from txl.language.export import write_original
from txl.language.model import LanguageModel
from txl.model.transformer import TransformerXL

KINDS = [
    "adaptive_div1",
    "adaptive_div1_emb16",
    "adaptive_div2_noprojtie",
    "attn1",
    "attn2",
    "attn3",
    "xl_pre_lnorm",
]


LENGTHS = ("tgt_len", "ext_len", "mem_len")


def lengths_of(context: Context) -> tuple[int, ...]:
    return tuple(getattr(context, name) for name in LENGTHS)


def require_weights_of(found: TransformerXL, expected: TransformerXL) -> None:
    weights = found.state_dict()
    assert all(torch.equal(weights[key], tensor) for key, tensor in expected.state_dict().items())


# the weights


@pytest.mark.parametrize("name", ["hf_div2", "x_hf_div1_emb16_tie_r"])
def test_hugging_faces_losses(name: str) -> None:
    golden = np.load(HF / name / "golden.npz")
    for prefix, dtype, near in (("", torch.float32, 1e-5), ("f64/", torch.float64, 1e-9)):
        model, context = from_huggingface(*read_huggingface(HF / name))
        model = model.to(dtype).eval()
        reader = ZeroMemory(model, context.mem_len)
        memory = reader.fresh_memory(2)
        for i in range(3):
            input_BT, target_BT = (
                torch.from_numpy(golden[f"seg{i}/{key}"]) for key in ("input_ids", "target")
            )
            hidden_BTD, after = model(input_BT, memory, context)
            nll_BT, memory = reader.nll(input_BT, target_BT, memory, context)
            for ours, key in ((nll_BT, "nll"), (model.log_prob(hidden_BTD[:, -1]), "logprob_last")):
                theirs = torch.from_numpy(golden[f"{prefix}seg{i}/{key}"])
                torch.testing.assert_close(ours, theirs.to(dtype), rtol=0, atol=near)
            assert after.length == memory.length


@pytest.mark.parametrize("name", KINDS)
def test_a_model_pt_is_read_without_the_2019_code(name: str, tmp_path: Path) -> None:
    """As zip, as before torch 1.6, and in DataParallel."""
    golden = Golden(name)
    model, _ = golden.model()
    for how in ({}, {"zipped": False}, {"parallel": True}):
        save_original(tmp_path / "model.pt", to_kimiyoung(model), golden.config["model"], **how)
        converted = convert(tmp_path if how else tmp_path / "model.pt")
        assert converted.kind == "kimiyoung/transformer-xl"
        assert lengths_of(converted.context) == tuple(
            golden.config["model"][name] for name in LENGTHS
        )
        has_projs = len(model.word_emb.projs) > 0  # without projections none is tied
        assert has_projs <= (converted.model.config == model.config)
        assert converted.context.same_length == golden.config["model"]["same_length"]
        require_weights_of(converted.model, model)


@pytest.mark.parametrize(
    ("in_file", "same_length", "expected"),
    [
        ((4, 2, 10), True, (4, 2, 10)),
        ((6, 0, 20), False, (16, 0, 0)),
        ((6, 0, 12), True, (4, 0, 12)),
        ((6, 0, 20), True, (1, 0, 15)),
    ],
)
@pytest.mark.parametrize("name", ["attn1", "attn3"])
def test_lengths_in_a_file_count_where_the_table_of_positions_has_as_many_rows(
    name: str,
    in_file: tuple[int, ...],
    same_length: bool,
    expected: tuple[int, ...],
    tmp_path: Path,
) -> None:
    """The table has 16; `reset_length` of the 2019 code changes what the file says of them."""
    golden = Golden(name)
    settings = (
        golden.config["model"]
        | dict(zip(LENGTHS, in_file, strict=True))
        | {"same_length": same_length}
    )
    save_original(tmp_path / "model.pt", to_kimiyoung(golden.model()[0]), settings)
    context = convert(tmp_path).context
    assert (lengths_of(context), context.same_length) == (expected, same_length)


@pytest.mark.parametrize(("d_embed", "div_val"), [(8, 1), (8, 2), (8, 4), (16, 2), (16, 4)])
@pytest.mark.parametrize("is_tied", [True, False])
def test_div_val_without_clusters_is_read_and_written(
    d_embed: int, div_val: int, is_tied: bool, tmp_path: Path
) -> None:
    """One table with a projection: which div_val it is of, its shape does not tell."""
    sizes = {"n_token": 9, "n_layer": 1, "n_head": 2, "d_head": 8, "d_model": 16, "d_inner": 4}
    shape = ModelConfig(
        **sizes, d_embed=d_embed, div_val=div_val, tie_projs=(is_tied,), n_position=Context.tgt_len
    )
    model = TransformerXL(shape).eval()
    arguments = arguments_for_kimiyoung(model, Context())
    save_original(tmp_path / "model.pt", to_kimiyoung(model), arguments)
    (tmp_path / "export").mkdir()
    write_original(
        LanguageModel(model, Context(), Vocab([f"w{i}" for i in range(9)])), tmp_path / "export"
    )
    for source in (tmp_path, tmp_path / "export"):
        converted = convert(source)
        assert converted.model.config == model.config
        require_weights_of(converted.model, model)


@pytest.mark.parametrize("tie_projs", [(), (False,), (False, True)])
def test_clusters_that_tie_projs_does_not_name_are_not_tied(
    tie_projs: tuple[bool, ...], tmp_path: Path
) -> None:
    """The default of the 2019 constructor names one."""
    sizes = {"n_token": 9, "n_layer": 1, "n_head": 2, "d_head": 8, "d_model": 16, "d_inner": 4}
    shape = ModelConfig(**sizes, adaptive=True, cutoffs=(3, 5), div_val=2, tie_projs=tie_projs)
    model = TransformerXL(shape).eval()
    write_original(LanguageModel(model, Context(), Vocab([f"w{i}" for i in range(9)])), tmp_path)
    all_three = (*tie_projs, *[False] * (3 - len(tie_projs)))
    assert convert(tmp_path).model.config.tie_projs == all_three
    arguments = arguments_for_kimiyoung(model, Context())
    assert arguments["tie_projs"] == list(all_three)
    again, _ = from_kimiyoung(to_kimiyoung(model), arguments | {"tie_projs": list(tie_projs)})
    require_weights_of(again, model)


def test_weights_without_their_model_and_compiled_models_are_named(tmp_path: Path) -> None:
    state = {
        f"module._orig_mod.{name}": tensor
        for name, tensor in to_kimiyoung(Golden("xl").model()[0]).items()
    }
    for content in (state, {"state_dict": state, "epoch": 3}):
        torch.save(content, tmp_path / "model.pt")
        with pytest.raises(
            UsageError, match=r"model\.pt: holds weights alone .*torch\.save\(model, path\)"
        ):
            convert(tmp_path)
    wrapped = b"\x80\x02ctorch._dynamo.eval_frame\nOptimizedModule\n."
    (tmp_path / "model.pt").write_bytes(wrapped)
    with pytest.raises(
        UsageError, match=r"torch\.compile has wrapped; .*torch\.save\(model\._orig_mod, path\)"
    ):
        convert(tmp_path)


def test_names_that_torch_compile_has_prefixed_are_read(hf: Path) -> None:
    golden = Golden("xl")
    model, _ = golden.model()
    for prefix in ("_orig_mod.", "module._orig_mod.", "_orig_mod.module."):
        state = {f"{prefix}{name}": tensor for name, tensor in to_kimiyoung(model).items()}
        state = {
            name.replace("layers.0.", "layers.0._orig_mod."): tensor
            for name, tensor in state.items()
        }
        require_weights_of(from_kimiyoung(state, golden.config["model"])[0], model)
    expected, (theirs, config) = convert(hf).model, read_huggingface(hf)
    compiled = {f"_orig_mod.{name}": tensor for name, tensor in theirs.items()}
    require_weights_of(from_huggingface(compiled, config)[0], expected)


@pytest.mark.parametrize("name", [*KINDS, "adaptive_div2"])
def test_nvidias_checkpoint(name: str, tmp_path: Path) -> None:
    """Its softmax has names of its own, and it lists shared projections once more."""
    golden = Golden(name)
    model, _ = golden.model()
    save_nvidia(tmp_path / "checkpoint_best.pt", model, golden.config["model"], WORDS)
    converted = convert(tmp_path)
    assert (converted.kind, converted.words) == ("NVIDIA DeepLearningExamples", WORDS)
    assert converted.context.same_length == golden.config["model"]["same_length"]
    assert lengths_of(converted.context) == tuple(golden.config["model"][name] for name in LENGTHS)
    assert converted.model.config == model.config
    require_weights_of(converted.model, model)


def test_vectors_of_positions_need_no_heads_of_their_width_in_nvidias_code() -> None:
    """In its attn_type 3 they are as wide as the model, whatever the width of the heads."""
    golden = Golden("attn3")
    state, settings = golden.state(), golden.config["model"]
    state["r_emb"] = state["r_emb"].flatten(2)
    for name in [name for name in state if "_net" in name]:
        axis = int("o_net" in name)
        halves = [net.chunk(2, axis)[0] for net in state[name].chunk(2 if "kv_net" in name else 1)]
        state[name] = torch.cat(halves)
    narrow = {"d_head": settings["d_head"] // 2}
    model, _ = from_kimiyoung(state, settings | narrow)
    assert (model.config.n_head, model.config.d_head) == (settings["n_head"], narrow["d_head"])
    assert torch.equal(model.layers[0].attn.pos.p_RD.flip(0), state["r_emb"][0])
    with pytest.raises(
        UsageError, match="n_head: missing, and weights of attn_type 3 do not show it"
    ):
        from_kimiyoung(state, settings | narrow | {"n_head": None})
    with pytest.raises(
        UsageError,
        match=r"--d_model 32: in attn_type 3 of the original it is n_head \* d_head \(16\)",
    ):
        to_kimiyoung(model)


def test_safetensors_are_read_too(hf: Path) -> None:
    expected, (state, _) = convert(hf).model, read_huggingface(hf)
    (hf / "pytorch_model.bin").unlink()
    contiguous = {
        name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in state.items()
    }
    save_file(contiguous, hf / "model.safetensors")
    require_weights_of(convert(hf).model, expected)


def test_a_configuration_that_says_less_is_completed_as_transformers_4_does() -> None:
    """Its class always has clusters, whatever `adaptive` says."""
    sizes = {
        "vocab_size": 300_000,
        "d_model": 512,
        "n_layer": 2,
        "n_head": 8,
        "d_head": 64,
        "d_inner": 2048,
    }
    model, context = configs_of(sizes)
    assert (model.cutoffs, model.tie_projs) == (
        (20_000, 40_000, 200_000),
        (False, True, True, True),
    )
    assert (model.d_embed, model.div_val, model.untie_r, model.pre_lnorm) == (1024, 4, True, False)
    assert (context.mem_len, context.clamp_len, context.same_length) == (1600, 1000, True)
    assert configs_of(sizes | {"adaptive": False}) == (model, context)


# what does not fit

CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"n_layer": 10**9}, "^n_layer 1000000000: must be at least 1 and at most 4096"),
    ({"cutoffs": list(range(1, 200))}, "describes a larger model than the"),
    ({"d_inner": 10**9}, "describes a larger model than the"),
    ({"n_layer": 2}, "no weights of the model that the configuration describes"),
    ({"n_layer": 4}, "missing from the weights"),
    ({"d_inner": 63}, "has the shape of"),
    (
        {"model_type": "gpt2"},
        "model_type 'gpt2': no such model is read; there are transfo-xl, llama",
    ),
    ({"model_type": ["llama"]}, "no such model is read; .*mistral, qwen2, qwen3, gpt_neox"),
    ({"attn_type": 1}, "attn_type 1: only 0 works there"),
    ({"layer_norm_epsilon": "small"}, "layer_norm_epsilon is 'small', which is not of type float"),
    ({"layer_norm_epsilon": -1.0}, "^layer_norm_epsilon -1.0: must be at least 0"),
    ({"mem_len": 0, "same_length": True}, "^mem_len 0: with same_length a token sees mem_len keys"),
    ({"cutoffs": [10, 10**7]}, r"^cutoffs 10 10000000: beyond the vocabulary of"),
    ({"tie_projs": 5}, "config.json: tie_projs is '5', which is not of type"),
    ({"dropout": "much"}, "config.json: dropout is 'much', which is not of type float"),
    ({"dropatt": 1.5}, "config.json: dropatt 1.5 is no probability"),
    ({"vocab_size": "many"}, "vocab_size many is no whole number"),
    ({"untie_r": False}, "missing from the weights"),
    ({"tie_projs": [True] * 4}, "differs from word_emb.emb_projs.0"),
]


def test_a_configuration_that_does_not_fit_the_weights_is_refused(hf: Path) -> None:
    good = json.loads((hf / "config.json").read_text())
    for change, message in CHANGES:
        (hf / "config.json").write_text(json.dumps(good | change))
        with pytest.raises(UsageError, match=message):
            convert(hf)


def test_a_tensorflow_checkpoint_is_told_where_its_weights_are(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text("model_checkpoint_path: x")
    with pytest.raises(UsageError, match="transfo-xl/transfo-xl-wt103"):
        convert(tmp_path)


ADAPTER = '{"base_model_name_or_path": "HuggingFaceTB/SmolLM2-135M"}'


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"model.Q4_K_M.gguf": "GGUF"}, "GGUF file of llama.cpp"),
        ({"config.json": '{"model_type": "llama"}', "m.gguf": "GGUF"}, "GGUF file of llama.cpp"),
        (
            {"adapter_config.json": ADAPTER, "adapter_model.safetensors": ""},
            "adapter of PEFT .* into HuggingFaceTB/SmolLM2-135M with peft's merge_and_unload",
        ),
        ({"adapter_config.json": "{"}, "adapter of PEFT .* into its model"),
        ({"params.json": "{}", "consolidated.00.pth": ""}, "form of Meta or Mistral"),
        ({"config.json": '{"model_type": "transfo-xl"}', "tf_model.h5": ""}, "from_pt"),
        ({"config.json": "{", "pytorch_model.bin": ""}, r"config\.json: damaged"),
    ],
    ids=str,
)
def test_forms_that_are_not_read_are_named_with_the_way_out(
    files: dict[str, str], message: str, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=message):
        convert(tmp_path)
    only = tmp_path / next(iter(files))
    if only.name != "config.json":
        with pytest.raises(UsageError, match=message):
            convert(only)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "model.pt"])
def test_a_pointer_of_git_lfs_is_named(name: str, hf: Path) -> None:
    (hf / "pytorch_model.bin").unlink()
    (hf / name).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\n")
    if name == "model.pt":
        (hf / "config.json").unlink()
    with pytest.raises(UsageError, match=f"{name}: is a pointer of git-lfs"):
        convert(hf)


# the words


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("vocab.txt", "<eos> 12\na\n\nb\n"),
        ("vocab.json", '{"b": 2, "<eos>": 0, "a": 1}'),
        ("vocab.json", '["<eos>", "a", "b"]'),
    ],
)
def test_words_beside_the_weights_are_found(hf: Path, name: str, content: str) -> None:
    (hf / name).write_text(content)
    assert convert(hf).words == ["<eos>", "a", "b"]


def test_pickled_vocabularies(hf: Path) -> None:
    torch.save({"idx2sym": ["<eos>", "ä"], "sym2idx": {}}, hf / "vocab.bin")
    assert convert(hf).words == ["<eos>", "ä"]
    with (
        foreign("data_utils", "Corpus", base=object) as classes,
        foreign("vocabulary", "Vocab", base=object) as more,
    ):
        corpus = classes["Corpus"]()
        corpus.vocab = more["Vocab"]()
        corpus.vocab.idx2sym = ["<eos>", "\u00fc"]
        torch.save(corpus, hf / "cache.pt")
    assert convert(hf, hf / "cache.pt").words == ["<eos>", "\u00fc"]


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_words_of_python_3_stay_and_byte_strings_of_python_2_are_utf_8(
    hf: Path, protocol: int
) -> None:
    words = ["<eos>", "caf\u00c3\u00a9", "\u00c2\u00a3", "caf\u00e9"]
    (hf / "vocab.pkl").write_bytes(pickle.dumps({"idx2sym": words}, protocol=protocol))
    assert convert(hf, hf / "vocab.pkl").words == words
    torch.save({"idx2sym": words}, hf / "vocab.bin", pickle_protocol=max(protocol, 2))
    assert convert(hf, hf / "vocab.bin").words == words
    cafe = "caf\u00e9".encode()
    listed = [
        b"U\x05<eos>",
        b"T\x05\0\0\0" + cafe,
        b"S'\\xc3\\xbc'\n",
        b"U\x01\xe9",
        b"X\x04\0\0\0\xc3\x83\xc2\xa9",
    ]
    pickled = b"}U\x07idx2sym](" + b"".join(listed) + b"es."
    (hf / "vocab.pkl").write_bytes(pickled)  # as Python 2 writes str, and unicode
    assert convert(hf, hf / "vocab.pkl").words == [
        "<eos>",
        "caf\u00e9",
        "\u00fc",
        "\u00e9",
        "\u00c3\u00a9",
    ]


ADDED = {
    "tokenizer_config.json": {
        "added_tokens_decoder": {"0": {"content": "<eos>"}, "199": {"content": "<pad>"}}
    },
    "added_tokens.json": {"<pad>": 199},
    "tokenizer.json": {
        "added_tokens": [{"id": 0, "content": "<eos>"}, {"id": 199, "content": "<pad>"}]
    },
}


def test_tokens_added_to_a_hugging_face_tokenizer_are_words(hf: Path) -> None:
    write_words(hf, WORDS[:-1])
    with pytest.raises(UsageError, match="has 199 words, the model has 200"):
        txl.load(hf)
    for file, content in ADDED.items():
        (hf / file).write_text(json.dumps(content))
        assert txl.load(hf).tokenizer.words[198:] == ["w196", "<pad>"]
        (hf / file).write_text("[3]")
        with pytest.raises(UsageError, match=file):
            txl.load(hf)
        (hf / file).unlink()


def test_tokens_added_to_an_export_are_words_as_far_as_the_model_has_rows(
    hf: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where config.json says how the text of the training was read, as that of an export does."""
    config = json.loads((hf / "config.json").read_text())
    said = {"txl_data": {"data": ["text"], "dataset": "wt103"}}
    (hf / "config.json").write_text(json.dumps(config | said))
    write_words(hf, WORDS[:-1])
    (hf / "added_tokens.json").write_text('{"<pad>": 199, "[PAD]": 200}')
    assert txl.load(hf).tokenizer.words[198:] == ["w196", "<pad>"]
    assert "added to the tokenizer, not to the model: ['[PAD]']" in caplog.text
    write_words(hf)
    assert txl.load(hf, vocabulary=hf / "vocab.txt").tokenizer.words == WORDS


def test_shards_come_before_a_pickle_that_was_left_behind(hf: Path) -> None:
    """As transformers reads them."""
    write_words(hf)
    state = tensors_of(weights_file(hf))
    (hf / "model.safetensors").unlink(missing_ok=True)
    torch.save(state, hf / "pytorch_model.bin")
    doubled = {name: 2 * tensor for name, tensor in state.items()}  # none shares memory
    save_file(doubled, hf / "model-00001-of-00001.safetensors")
    names = dict.fromkeys(doubled, "model-00001-of-00001.safetensors")
    (hf / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    read = txl.load(hf).model.layers[0].attn_norm.weight
    assert torch.equal(read, doubled["transformer.layers.0.dec_attn.layer_norm.weight"])


@pytest.mark.parametrize("first", [torch.float16, torch.bfloat16])
def test_weights_of_several_dtypes_are_read_in_one_that_holds_all(
    hf: Path, first: torch.dtype
) -> None:
    write_words(hf)
    state = {}
    for name, tensor in tensors_of(weights_file(hf)).items():
        state[name] = tensor.clone()
        if "layer_norm" not in name:
            state[name] = state[name].to(first)
    save_file(state, hf / "model.safetensors")
    read = txl.load(hf).model.layers[0].attn_norm.weight
    assert torch.equal(read, state["transformer.layers.0.dec_attn.layer_norm.weight"])


def test_a_folder_is_written_once_and_only_with_words_that_fit(here: Here, hf: Path) -> None:
    assert "holds no vocabulary" in here.refused("convert hf new")
    write_words(hf, WORDS[:-1])
    assert "199 words, the model has 200" in here.refused("convert hf new")
    assert not Path("new").exists()
    write_words(hf)
    out = here("convert hf new --explain").out
    assert "| read transformer.word_emb.emb_layers.0.weight" in out
    assert "tensors read" in out
    assert (
        here("convert hf new", status=2).err
        == "convert.py: new: is not empty; name another folder\n"
    )
