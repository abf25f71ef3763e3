"""The model computes what the original computes: losses, memories, log-probabilities, gradients, to 1e-9 in float64."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from txl import Context, ModelConfig, Span, TransformerXL
from txl.attention_rules import use_attention
from txl.config import UsageError
from txl.convert import from_kimiyoung, to_kimiyoung
from txl.convert.kimiyoung import parameters_as_kimiyoung
from txl.model.streams import of_hidden

FOLDER = Path(__file__).parent / "model"
NAMES = sorted(path.stem for path in FOLDER.glob("*.npz"))
PILED_UP = ["attn2", "attn3"]
RIGHT_IN_THE_ORIGINAL = [name for name in NAMES if name not in ("ext", *PILED_UP)]
STATE_DICTS = json.loads((FOLDER / "state_dicts.json").read_text())
"""Shapes by name of the original's `state_dict()`, of one golden file for each kind of model."""
EVERY_MEMORY = ["attn1", "attn1_clamp"]
"""Of these the file holds the memory after every segment, of the others in `RIGHT_IN_THE_ORIGINAL` after the last."""


class Golden:
    """One file of golden numbers, batch first."""

    def __init__(self, name: str) -> None:
        self.file = np.load(FOLDER / f"{name}.npz")
        self.config = json.loads(str(self.file["config"]))
        self.n_segment = self.config["n_seg"]

    def model(self) -> tuple[TransformerXL, Context]:
        model, context = from_kimiyoung(self.state(), self.config["model"])
        return model.eval(), dataclasses.replace(context, **(self.config["reset"] or {}))

    def state(self) -> dict[str, Tensor]:
        return {
            k.removeprefix("param/"): self.read(k).double()
            for k in self.file.files
            if k.startswith("param/")
        }

    def read(self, key: str) -> Tensor:
        return torch.from_numpy(self.file[key])

    def segment(self, i: int) -> tuple[Tensor, Tensor, Tensor]:
        data, target, loss = (self.read(f"seg{i}/{key}").T for key in ("data", "target", "loss"))
        return data.long(), target.long(), loss

    def memory(self, i: int) -> list[Tensor]:
        n_layer = self.config["model"]["n_layer"]
        keys = [f"seg{i}/mem{layer}" for layer in range(n_layer)]
        return [self.read(key).transpose(0, 1) for key in keys if key in self.file.files]

    def gradients(self) -> dict[str, Tensor]:
        return {
            k.removeprefix("grad/"): self.read(k) for k in self.file.files if k.startswith("grad/")
        }


def assert_same(ours: Tensor, golden: Tensor) -> None:
    torch.testing.assert_close(ours, golden, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", RIGHT_IN_THE_ORIGINAL)
def test_losses_and_memory_over_all_segments(name: str) -> None:
    """By each implementation of attention in turn; `tests/ops` holds that they agree."""
    golden = Golden(name)
    model, context = golden.model()
    use_attention(model, ("auto", "naive", "dense")[NAMES.index(name) % 3])
    memory = None
    for i in range(golden.n_segment):
        data_BT, target_BT, loss_BT = golden.segment(i)
        nll_BT, memory = model.nll(data_BT, target_BT, memory, context)
        assert_same(nll_BT, loss_BT)
        if context.mem_len and (name in EVERY_MEMORY or i == golden.n_segment - 1):
            for ours, theirs in zip(memory.layers, golden.memory(i), strict=True):
                assert_same(ours, theirs)


@pytest.mark.slow
def test_losses_by_the_fused_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, the widest it has, which 1e-4 allows for. One row, since Triton's interpreter is slow, and segments
    until the memory is full."""
    pytest.importorskip("triton", reason="Triton is published for Linux only", exc_type=ImportError)
    from txl.ops.rel_attention import launch

    monkeypatch.setattr(launch, "TILES", {key: launch.Tile(16, 4, 2) for key in launch.TILES})
    golden = Golden("xl_same_length")
    model, context = golden.model()
    model = model.float()
    for layer in model.layers:  # use_attention would ask for a GPU
        layer.attn.rule.impl = "fused"
    memory = None
    for i in range(3):
        data_BT, target_BT, loss_BT = (x[:1] for x in golden.segment(i))
        with torch.no_grad():
            nll_BT, memory = model.nll(data_BT, target_BT, memory, context)
        torch.testing.assert_close(nll_BT.double(), loss_BT, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_log_probabilities_of_all_words(name: str) -> None:
    """And what was imported is exported again."""
    golden = Golden(name)
    model, _ = golden.model()
    last = f"seg{golden.n_segment - 1}"
    assert_same(
        model.log_prob(golden.read(f"{last}/hidden_last")), golden.read(f"{last}/logprob_last")
    )
    exported, theirs = (
        parameters_as_kimiyoung(model, dict(model.named_parameters())),
        golden.state(),
    )
    assert exported.keys() == theirs.keys()
    assert all(torch.equal(exported[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize(
    "name", [name for name in RIGHT_IN_THE_ORIGINAL if Golden(name).gradients()]
)
def test_gradient_of_every_parameter(name: str) -> None:
    golden = Golden(name)
    model, context = golden.model()
    memory = None
    for i in range(golden.config["grad_segment"] + 1):
        data_BT, target_BT, _ = golden.segment(i)
        nll_BT, memory = model.nll(data_BT, target_BT, memory, context)
    assert_same_gradients(model, nll_BT, golden)


def assert_same_gradients(model: TransformerXL, nll_BT: Tensor, golden: Golden) -> None:
    nll_BT.mean().backward()
    ours = parameters_as_kimiyoung(model, {name: p.grad for name, p in model.named_parameters()})
    theirs = golden.gradients()
    assert ours.keys() == theirs.keys()
    for key, gradient in theirs.items():
        assert_same(ours[key], gradient)


def test_ext_len_where_the_original_is_right() -> None:
    """Given a memory that is long enough, re-read tokens, losses and the next memory are the original's."""
    golden = Golden("ext")
    model, context = golden.model()
    for i in range(2, golden.n_segment):
        nll_BT, memory = model.nll(*golden.segment(i)[:2], of_hidden(golden.memory(i - 1)), context)
        assert_same(nll_BT, golden.segment(i)[2])
        for ours, theirs in zip(memory.layers, golden.memory(i), strict=True):
            assert_same(ours, theirs)


def test_ext_len_where_the_original_remembers_tokens_it_reads_again() -> None:
    """The original exchanges two lengths when it cuts its memory (its _update_mems is called with (mlen, qlen)).

    After a first segment of 8 tokens with ext_len 4 it remembers tokens 0 to 7, though the second segment reads tokens
    4 to 15: tokens 4 to 7 are seen twice. We remember tokens 0 to 3.
    """
    golden = Golden("ext")
    model, context = golden.model()
    data_BT, target_BT, loss_BT = golden.segment(0)
    nll_BT, memory = model.nll(data_BT, target_BT, None, context)
    assert_same(nll_BT, loss_BT)
    for ours, theirs in zip(memory.layers, golden.memory(0), strict=True):
        assert theirs.shape[1] == 8
        assert_same(ours, theirs[:, :4])


@pytest.mark.parametrize("name", PILED_UP)
def test_absolute_positions_without_memory_where_the_original_is_right(name: str) -> None:
    golden = Golden(name)
    model, context = golden.model()
    data_BT, target_BT, loss_BT = golden.segment(0)
    nll_BT, memory = model.nll(data_BT, target_BT, None, context)
    assert_same(nll_BT, loss_BT)
    without = dataclasses.replace(context, mem_len=0)
    assert_same(model.nll(data_BT, target_BT, None, without)[0], loss_BT)
    # what the original remembers of it has positions in it: attn_type 2 in its first layer, attn_type 3 in all
    theirs, positions_TD = golden.memory(0), added_positions(model, 8)
    for layer, ours in enumerate(memory.layers):
        placed = ours + positions_TD[layer] if name == "attn3" or layer == 0 else ours
        assert_same(placed, theirs[layer])


def added_positions(model: TransformerXL, n_new: int) -> list[Tensor]:
    """What the encoding adds to the input of each layer in a first segment."""
    span, nothing = Span(0, n_new), torch.zeros(1, n_new, model.config.d_model).double()
    encodings = [layer.attn.pos for layer in model.layers]
    feats = encodings[0].prepare(span, like=nothing)
    return [pos.layer_input(nothing, nothing[:, :0], feats, span)[0] for pos in encodings]


@pytest.mark.parametrize("name", PILED_UP)
def test_absolute_positions_that_the_original_adds_to_its_memory_again_and_again(name: str) -> None:
    """The original adds positions in place to what it remembers, and carries the sum on (`mems_i += ...`).

    A token remembered for k segments carries k + 1 positions. Given a memory with positions in it, ours computes what
    the original computes, losses and gradients, to 1e-9; what it remembers has none, so that they are added once.
    """
    golden = Golden(name)
    model, context = golden.model()
    ours = None
    for i in range(golden.n_segment):
        data_BT, target_BT, loss_BT = golden.segment(i)
        if i > 0:
            nll_BT, _ = model.nll(data_BT, target_BT, of_hidden(golden.memory(i - 1)), context)
            assert_same(nll_BT, loss_BT)
            if i == golden.config["grad_segment"]:
                assert_same_gradients(model, nll_BT, golden)
            assert (model.nll(data_BT, target_BT, ours, context)[0] - loss_BT).abs().max() > 1e-3
        _, ours = model.nll(data_BT, target_BT, ours, context)


LOGGED = {
    "not_tied": True,
    "tied": False,
    "adaptive": False,
    "dataset": "wt103",
    "lr": 0.1,
    "n_all_param": 7,
}
DECIDED_BY_WEIGHTS = [
    "n_token",
    "n_layer",
    "n_head",
    "d_head",
    "d_model",
    "d_inner",
    "d_embed",
    "div_val",
    "attn_type",
]


@pytest.mark.parametrize("name", STATE_DICTS)
def test_the_exported_state_dict_has_the_names_and_shapes_of_the_original(name: str) -> None:
    """Tied tensors and `inv_freq` included, so that it loads with strict=True; and it is imported again.

    What the weights show need not be given, nor what train.py logged otherwise.
    """
    model, _ = Golden(name).model()
    exported = to_kimiyoung(model)
    assert {key: list(tensor.shape) for key, tensor in exported.items()} == STATE_DICTS[name]
    config = Golden(name).config["model"]
    weights = dict(from_kimiyoung(exported, config)[0].named_parameters())
    assert all(torch.equal(weights[key], parameter) for key, parameter in model.named_parameters())
    hidden = {*DECIDED_BY_WEIGHTS, "tie_weight"} | (
        {"tie_projs", "cutoffs"} if "div2" in name else set()
    )
    hidden -= {"n_head"} if name == "attn2" else set()
    given = {k: v for k, v in config.items() if k not in hidden} | (
        LOGGED if name == "xl_untied" else {}
    )
    assert from_kimiyoung(exported, given)[0].config == model.config


@pytest.mark.parametrize(
    ("name", "given", "reason"),
    [
        ("xl", {"n_layer": 1}, "n_layer: 1 is given, but the weights are those of n_layer 3"),
        (
            "xl",
            {"tie_weight": False},
            "tie_weight: False is given, but the weights are those of tie_weight True",
        ),
        ("xl_untied", {"tie_weight": True}, "tie_weight: True is given, but"),
        (
            "xl_untied",
            {"not_tied": False, "tied": False},
            "tie_weight and tied and not_tied contradict each other",
        ),
        ("xl", {"pre_norm": True}, "pre_norm: no argument of the 2019 model"),
        ("xl", {"pre_lnorm": None}, "pre_lnorm: missing"),
        ("xl", {"attn_type": 4}, "attn_type: 4 is given, but the weights are those of attn_type 0"),
        ("adaptive_div1", {"cutoffs": [20]}, r"cutoffs: \[20\] are given, the weights have 3"),
        (
            "adaptive_div2",
            {"cutoffs": [20, 60, 121]},
            "cutoffs: .* the weights are those of cutoffs",
        ),
        (
            "adaptive_div2_noprojtie",
            {"tie_projs": [False, True, True, True]},
            "tie_projs: .* are those of tie_projs",
        ),
        ("attn1", {"mem_len": 9}, "tgt_len, ext_len, mem_len: .* r_emb has 16 rows"),
        ("attn2", {"n_head": None}, "n_head: missing"),
        ("attn3", {"n_layer": 2}, "n_layer: 2 is given"),
    ],
    ids=str,
)
def test_arguments_that_do_not_belong_to_the_weights_are_refused(
    name: str, given: dict[str, object], reason: str
) -> None:
    golden = Golden(name)
    with pytest.raises(UsageError, match=reason):
        from_kimiyoung(golden.state(), golden.config["model"] | given)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s: s | {"r_r_bias": torch.full((4, 8), float("nan"))}, "r_r_bias: not a finite"),
        (
            lambda s: s | {"layers.0.extra": torch.zeros(1)},
            "layers.0.extra: no weights of the model",
        ),
        (lambda s: s | {"pos_emb.inv_freq": torch.ones(16)}, "pos_emb.inv_freq: other frequencies"),
        (
            lambda s: s | {"r_w_bias": torch.zeros(4, 8).long()},
            "r_w_bias: not a finite floating-point tensor",
        ),
        (
            lambda s: {k: v for k, v in s.items() if k != "r_r_bias"},
            "r_r_bias: missing from the weights",
        ),
        (lambda s: {k: v for k, v in s.items() if "layers.1." not in k}, "numbers are missing"),
        (
            lambda s: s | {"layers.0.pos_ff.CoreNet.0.bias": torch.zeros(3)},
            "CoreNet.0.bias: has the shape of",
        ),
        (lambda s: {}, "missing from the weights"),
    ],
)
def test_weights_of_another_kind_are_refused_by_name(change: Any, reason: str) -> None:
    golden = Golden("xl")
    with pytest.raises(UsageError, match=reason):
        from_kimiyoung(change(golden.state()), golden.config["model"])


def test_float32_weights_make_a_float32_model() -> None:
    golden = Golden("adaptive_div2")
    state = {key: weight.float() for key, weight in golden.state().items()}
    model, context = from_kimiyoung(state, golden.config["model"])
    data_BT, target_BT, loss_BT = golden.segment(0)
    nll_BT, _ = model.eval().nll(data_BT, target_BT, None, context)
    assert nll_BT.dtype == torch.float32
    torch.testing.assert_close(nll_BT.double(), loss_BT, rtol=0, atol=5e-6)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"position": "alibi"}, "--position alibi: the original has no such encoding"),
        ({"untie_r": True}, "--untie_r: the original has one pair of u and v"),
        ({"position": "sinusoid_input"}, "counts positions back from the last token"),
        (
            {"position": "learned_per_layer", "n_position": 4},
            "counts positions back from the last token",
        ),
    ],
)
def test_what_the_original_has_no_place_for_is_not_exported(
    settings: dict[str, object], reason: str
) -> None:
    model = TransformerXL(
        ModelConfig(
            **{"n_token": 5, "n_layer": 1, "n_head": 1, "d_head": 4, "d_model": 4, "d_inner": 4}
            | settings
        )
    )
    with pytest.raises(UsageError, match=reason):
        to_kimiyoung(model)


def test_the_clamp_that_attn_type_3_ignored_is_dropped() -> None:
    golden = Golden("attn3")
    _, context = from_kimiyoung(golden.state(), golden.config["model"] | {"clamp_len": 4})
    assert context.clamp_len == -1
    assert (
        from_kimiyoung(Golden("attn2").state(), Golden("attn2").config["model"] | {"clamp_len": 4})[
            1
        ].clamp_len
        == 4
    )
