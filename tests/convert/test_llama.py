"""Hugging Face's decoders of Llama's family, without transformers: what it gave is kept."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.hf.llamas import EVERY, GOLDEN, LONGROPE, YARN, golden_ids, weight
from txl.config import UsageError
from txl.convert import convert, gpt_neox
from txl.convert.llama import NAMES, Llama, config_for_llama, configs_of, to_llama
from txl.convert.source import Place
from txl.convert.tensor_files import (
    INDEX,
    ONE,
    PICKLED_INDEX,
    fingerprint_of,
    tensors_of,
    weights_file,
)
from txl.inference.reader import Reader, context_of_text
from txl.model.sizes import model_without_values, weights_of
from txl.positions.rotary import Rotary

KINDS: dict[str, Any] = json.loads(GOLDEN.read_text())


def state_of(settings: dict[str, Any]) -> dict[str, Tensor]:
    """The weights by the formula, under their names there."""
    if settings["model_type"] == "gpt_neox":
        return state_of_neox(settings)
    config, _ = configs_of(settings, Path("config.json"))
    state = {}
    for name, parameter in model_without_values(config, device="cpu").named_parameters():
        names = NAMES.of(name)
        first, *others = parameter.shape
        for their_name in names:
            state[their_name] = weight(their_name, (first // len(names), *others))
    return state


def state_of_neox(settings: dict[str, Any]) -> dict[str, Tensor]:
    config, _ = gpt_neox.configs_of(settings, Path("config.json"))
    state = {}
    for name, parameter in model_without_values(config, device="cpu").named_parameters():
        (their_name,) = gpt_neox.NAMES.of(name)
        first, *others = parameter.shape
        if ".query." in their_name:
            their_name = their_name.replace(".query.", ".query_key_value.")
            first = 3 * first
        if ".key." not in their_name and ".value." not in their_name:
            state[their_name] = weight(their_name, (first, *others))
    return state


def write(folder: Path, settings: dict[str, Any], state: dict[str, Tensor]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    save_file(state, folder / ONE, metadata={"format": "pt"})
    return folder


@pytest.fixture
def settings() -> dict[str, Any]:
    return dict(KINDS["llama"]["config"])


@pytest.fixture
def folder(tmp_path: Path, settings: dict[str, Any]) -> Path:
    return write(tmp_path / "llama", settings, state_of(settings))


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    settings = KINDS[kind]["config"]
    found = convert(write(tmp_path / "there", settings, state_of(settings)))
    expected_R = torch.tensor(KINDS[kind]["logits"], dtype=torch.float64)
    context = context_of_text(found.model.config, found.context, golden_ids().shape[1])
    memory = None
    for part_1T in golden_ids().split([11, 7, 12], dim=1):
        hidden_1TD, memory = found.model(part_1T, memory, context)
    read_1TD = Reader(found.model, context, 1).read(golden_ids())
    for last_D in (hidden_1TD[0, -1], read_1TD[0, -1]):
        logit_V = found.model.softmax.tables[0] @ last_D
        torch.testing.assert_close(logit_V[::EVERY], expected_R, rtol=0, atol=1e-10)


@pytest.mark.parametrize("masked", [torch.tensor(-1e9), torch.tensor(-torch.inf).half()])
def test_masks_that_older_checkpoints_keep_beside_the_weights_are_left_out(
    masked: Tensor, tmp_path: Path
) -> None:
    """Pythia's have them, of booleans, and infinite in 16 bits."""
    settings = KINDS["gpt_neox"]["config"]
    state = state_of(settings)
    for layer in range(settings["num_hidden_layers"]):
        place = f"gpt_neox.layers.{layer}.attention"
        state[f"{place}.bias"] = torch.ones(1, 1, 64, 64, dtype=torch.bool).tril()
        state[f"{place}.masked_bias"] = masked.clone()
        state[f"{place}.rotary_emb.inv_freq"] = torch.ones(2)
    kept = weights_of(convert(write(tmp_path / "kept", settings, state)).model)
    plain = weights_of(convert(write(tmp_path / "plain", settings, state_of(settings))).model)
    assert kept.keys() == plain.keys()
    assert all(torch.equal(kept[name], plain[name]) for name in plain)


def test_weights_of_several_dtypes_are_read_in_one_that_holds_all(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    """As matrices in 16 bits with norms in 32 are; those that come first are the head's, or the table's."""
    state = state_of(settings)
    for name in state:
        state[name] = state[name].to(torch.float32 if "norm" in name else torch.bfloat16)
    state["model.norm.weight"] = 1e5 * torch.ones_like(state["model.norm.weight"])
    model = convert(write(tmp_path / "mixed", settings, state)).model
    assert torch.equal(model.final_norm.weight, state["model.norm.weight"])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "gpt_neox" not in kind])
def test_weights_and_settings_go_back_as_they_came(kind: str, tmp_path: Path) -> None:
    settings = KINDS[kind]["config"]
    state = state_of(settings)
    found = Llama.read(Place(write(tmp_path / "there", settings, state)))
    back = to_llama(found.model)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in state.items())
    written = config_for_llama(found.model, found.context)
    path = Path("config.json")
    assert configs_of(written, path) == (found.model.config, found.context)


def test_several_files_are_read_by_their_index(folder: Path, settings: dict[str, Any]) -> None:
    whole = state_of(settings)
    (folder / ONE).unlink()
    file_of = {}
    for i, name in enumerate(sorted(whole)):
        file_of[name] = f"part_{i % 3}.safetensors"
    for file in sorted(set(file_of.values())):
        part = {name: whole[name] for name in whole if file_of[name] == file}
        save_file(part, folder / file)
    (folder / INDEX).write_text(json.dumps({"weight_map": file_of}))
    found = convert(folder)
    assert found.kind == "Hugging Face llama"
    back = to_llama(found.model)
    assert all(torch.equal(back[name], tensor) for name, tensor in whole.items())

    weights = weights_file(folder)
    before = fingerprint_of(weights)
    path = folder / file_of["model.norm.weight"]
    changed = load_file(path)
    save_file(changed | {"model.norm.weight": whole["model.norm.weight"] + 1}, path)
    assert fingerprint_of(weights) != before  # though the index is the same

    hostile = file_of | {"lm_head.weight": "../part_0.safetensors"}
    (folder / INDEX).write_text(json.dumps({"weight_map": hostile}))
    with pytest.raises(UsageError, match="a file outside its folder"):
        convert(folder)
    other = file_of | {"lm_head.weight": "part_1.safetensors", "more": "part_0.safetensors"}
    (folder / INDEX).write_text(json.dumps({"weight_map": other}))
    with pytest.raises(
        UsageError, match=r"which model\.safetensors\.index\.json says is not there"
    ):
        convert(folder)
    (folder / INDEX).write_text(
        json.dumps({"weight_map": file_of | {"more": "part_0.safetensors"}})
    )
    with pytest.raises(UsageError, match="more is in none of the files"):
        convert(folder)
    (folder / "part_2.safetensors").unlink()
    (folder / INDEX).write_text(json.dumps({"weight_map": file_of}))
    with pytest.raises(UsageError, match=r"part_2\.safetensors: missing"):
        convert(folder)


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"vocab_size": "many"}, "vocab_size is 'many', of another type"),
    ({"hidden_size": None}, "hidden_size is 'None', of another type"),
    ({"hidden_act": "tanh"}, "hidden_act tanh: no such activation"),
    ({"num_key_value_heads": 3}, "n_head 4 is no multiple of it"),
    ({"rope_parameters": {"rope_type": ["yarn"]}}, "no such scaling .* llama3, yarn, longrope"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type dynamic: its frequencies"),
    ({"rope_scaling": YARN | {"factor": "4"}}, "factor is '4', and no number"),
    ({"rope_scaling": YARN | {"beta_fast": 0.5}}, "rope_low 1.0: must be below rope_high 0.5"),
    ({"rope_scaling": YARN | {"truncate": "no"}}, "truncate is 'no', and no boolean"),
    ({"rope_scaling": YARN, "rope_theta": 1.0}, "rope_base 1.0: must be above 1"),
    ({"rope_scaling": YARN | {"mscale": 1, "mscale_all_dim": -99}}, "mscale_all_dim -99: must be"),
    ({"rope_scaling": LONGROPE | {"long_factor": [1.0]}}, "rope_long: has 1 numbers; give 4"),
    ({"rope_scaling": LONGROPE | {"short_factor": 2}}, "short_factor is no list of numbers"),
    ({"rope_scaling": LONGROPE | {"original_max_position_embeddings": 1}}, "must be above 1"),
    ({"rope_parameters": {"rope_type": "llama3", "factor": "8"}}, "factor is '8', and no number"),
    ({"partial_rotary_factor": "0.5"}, "partial_rotary_factor is '0.5', and no number"),
    ({"partial_rotary_factor": 0.5}, "no class of Llama's family turns a part"),
    ({"rms_norm_eps": None}, "rms_norm_eps is 'None', of another type"),
    ({"max_position_embeddings": None}, "max_position_embeddings is 'None', of another type"),
    ({"quantization_config": {"bits": 4}}, "quantization_config: such a model is not read"),
    ({"num_hidden_layers": 4}, r"model\.layers\.3\.\S+ is missing"),
    ({"num_hidden_layers": 2}, r"model\.layers\.2\.\S+, .*: no weights of the model"),
    ({"hidden_size": 1 << 20}, "describes a larger model than"),
    ({"intermediate_size": 44}, "of the shape"),
    ({"tie_word_embeddings": True}, "lm_head.weight: no weights of the model"),
]


def test_a_decoder_whose_words_have_a_projection_does_not_go_there(folder: Path) -> None:
    found = convert(folder)
    config = replace(found.model.config, div_val=2)
    with pytest.raises(UsageError, match="--div_val 2: transformers has no such decoder, only 1"):
        config_for_llama(model_without_values(config, device="cpu"), found.context)


def test_weights_in_one_file_count_before_those_of_an_index(
    folder: Path, settings: dict[str, Any]
) -> None:
    older = state_of(settings)
    save_file({name: tensor + 1 for name, tensor in older.items()}, folder / "part.safetensors")
    (folder / INDEX).write_text(
        json.dumps({"weight_map": dict.fromkeys(older, "part.safetensors")})
    )
    back = to_llama(convert(folder).model)
    assert all(torch.equal(back[name], tensor) for name, tensor in older.items())


@pytest.mark.parametrize(("change", "message"), CHANGES, ids=lambda value: str(value)[:40])
def test_what_is_not_ours_or_does_not_fit_is_refused(
    change: dict[str, Any], message: str, folder: Path, settings: dict[str, Any]
) -> None:
    (folder / "config.json").write_text(json.dumps(settings | change))
    with pytest.raises(UsageError, match=message):
        Llama.read(Place(folder))


def test_no_model_is_built_for_sizes_that_the_weights_do_not_have(
    folder: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each size is compared with the headers: frequencies of 10^9 channels would take gigabytes."""
    monkeypatch.setattr(Rotary, "__init__", lambda *_, **__: pytest.fail("built"))
    for name in ("head_dim", "num_attention_heads", "hidden_size", "num_hidden_layers"):
        (folder / "config.json").write_text(json.dumps(settings | {"head_dim": 8, name: 10**9}))
        with pytest.raises(
            UsageError, match=r"describes a larger model|(n_head|n_layer) 1000000000"
        ):
            Llama.read(Place(folder))


def test_shapes_are_compared_before_values_are_read(
    folder: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "config.json").write_text(json.dumps(settings | {"intermediate_size": 44}))
    monkeypatch.setattr(Tensor, "isfinite", lambda _: pytest.fail("read"))
    with pytest.raises(UsageError, match="of the shape"):
        Llama.read(Place(folder))


def test_layers_with_and_without_a_window_are_refused(settings: dict[str, Any]) -> None:
    some = {"layer_types": ["full_attention", "full_attention", "sliding_attention"]}
    with pytest.raises(UsageError, match="some layers have a sliding window"):
        configs_of(settings | some | {"sliding_window": 8}, Path("config.json"))
    qwen = {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8}
    with pytest.raises(UsageError, match="some layers have a sliding window"):
        configs_of(settings | qwen | {"max_window_layers": 2}, Path("config.json"))
    _, context = configs_of(settings | qwen | {"max_window_layers": 0}, Path("config.json"))
    assert (context.mem_len, context.same_length) == (8, True)


def test_a_context_is_as_long_as_yarn_stretches_it(settings: dict[str, Any]) -> None:
    _, context = configs_of(settings | {"rope_scaling": YARN | {"factor": 40}}, Path("config.json"))
    assert context.tgt_len + context.mem_len + 4 == 40 * 24


def test_settings_count_as_in_transformers(settings: dict[str, Any]) -> None:
    path = Path("config.json")
    # Llama's class has no window
    assert configs_of(settings | {"sliding_window": 8}, path) == configs_of(settings, path)
    linear = {"rope_type": "linear", "factor": 4.0}
    both = settings | {"rope_scaling": linear, "rope_parameters": {"rope_type": "default"}}
    config, _ = configs_of(both, path)
    assert (config.own["rope_scaling"], config.own["rope_factor"]) == ("linear", 4)
    # layers from the 28th on have one where nothing is said of them
    qwen = settings | {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8}
    assert not configs_of(qwen, path)[1].same_length
    with pytest.raises(UsageError, match="some layers have a sliding window"):
        configs_of(qwen | {"num_hidden_layers": 29}, path)
    assert configs_of(qwen | {"max_window_layers": 0}, path)[1].same_length


@pytest.mark.parametrize("kind", ["mistral", "qwen2", "qwen3"])
def test_biases_that_a_class_does_not_read_are_none(kind: str) -> None:
    settings = dict(KINDS[kind]["config"])
    plain = configs_of(settings, Path("config.json"))
    asked = {"attention_bias": True, "mlp_bias": True}
    if kind == "qwen3":
        del asked["attention_bias"]
    assert configs_of(settings | asked, Path("config.json")) == plain


def test_weights_that_are_no_numbers_are_refused(folder: Path, settings: dict[str, Any]) -> None:
    state = state_of(settings)
    state["model.norm.weight"][3] = torch.nan
    write(folder, settings, state)
    with pytest.raises(UsageError, match=r"model\.norm\.weight is no finite"):
        convert(folder)
    (folder / ONE).write_bytes(b"no tensors")
    with pytest.raises(UsageError, match="truncated or damaged"):
        convert(folder)
    (folder / ONE).unlink()
    with pytest.raises(UsageError, match=r"holds neither model\.safetensors nor"):
        convert(folder)


@pytest.mark.parametrize("n_file", [1, 3])
def test_pickled_state_dicts_are_read(n_file: int, folder: Path, settings: dict[str, Any]) -> None:
    state = state_of(settings)
    (folder / ONE).unlink()
    file_of = dict.fromkeys(state, "pytorch_model.bin")
    if n_file > 1:
        for i, name in enumerate(state):
            file_of[name] = f"pytorch_model-{i % n_file + 1:05}-of-{n_file:05}.bin"
        (folder / PICKLED_INDEX).write_text(json.dumps({"metadata": {}, "weight_map": file_of}))
    for file in set(file_of.values()):
        torch.save({name: state[name] for name in state if file_of[name] == file}, folder / file)
    back = to_llama(convert(folder).model)
    assert all(torch.equal(back[name], tensor) for name, tensor in state.items())
    before = fingerprint_of(weights_file(folder))
    torch.save({}, folder / file_of["model.norm.weight"])
    assert fingerprint_of(weights_file(folder)) != before
    with pytest.raises(UsageError):
        convert(folder)
    if n_file > 1:  # an index that names itself
        index = json.dumps({"weight_map": dict.fromkeys(state, PICKLED_INDEX)})
        (folder / PICKLED_INDEX).write_text(index)
        with pytest.raises(UsageError):
            convert(folder)
    shutil.rmtree(folder)


def test_each_tensor_is_mapped_by_itself(folder: Path) -> None:
    path = weights_file(folder)
    held = path.read_bytes()
    header = json.loads(held[8 : 8 + int.from_bytes(held[:8], "little")])
    found = tensors_of(path)
    begins = {t.data_ptr() - header[name]["data_offsets"][0] for name, t in found.items()}
    assert len(begins) == len(found)
