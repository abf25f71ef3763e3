"""The list of models that all laws are tried on, in float64, with weights large enough to tell them apart.

A line names what differs from `SIZES`, in the model and, where not every context suits it, in how far it looks back. A
law asks for the models that claim it with `for_models(...)`; a line more is a model more for each of them.
"""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.hygiene.toy_memory import ToyMemory
from txl import Context, ModelConfig, TransformerXL
from txl.config import build as built
from txl.config import names_of
from txl.inference.frozen import Frozen
from txl.memory import MEMORIES
from txl.positions import POSITION_ENCODINGS, PositionEncoding

N_TOKEN = 50
SIZES = {"n_token": N_TOKEN, "n_layer": 3, "n_head": 2, "d_head": 8, "d_model": 16, "d_inner": 20}
SMALL = {"n_layer": 2, "d_head": 4, "d_model": 8, "d_inner": 6}
"""Of the models in this folder."""
ENCODINGS: dict[str, dict[str, Any]] = {
    "learned_relative": {"n_position": 40},
    "learned_relative_short": {"position": "learned_relative", "n_position": 6},
    "sinusoid_input": {"pre_lnorm": True},
    "learned_per_layer": {"n_position": 40},
    "learned_absolute": {"n_position": 40},
    "rotary": {},
    "t5": {"n_bucket": 8, "max_distance": 20},
    "shaw": {"max_distance": 9},
    "relative_keys": {"n_position": 40},
    "relative_keys_short": {
        "position": "relative_keys",
        "n_position": 6,
        "untie_r": True,
        "n_head": 1,
    },
    "deberta": {"max_distance": 9},
    "floater": {},
    "floater_untied": {"position": "floater", "untie_r": True},
    "alibi": {"n_head": 3, "d_head": 5},
    "none": {},
}
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "pre_lnorm_adaptive": {
        "pre_lnorm": True,
        "cutoffs": (10, 30),
        "div_val": 2,
        "tie_projs": (False, True, True),
    },
    "untie_r_one_table": {
        "untie_r": True,
        "cutoffs": (10, 30),
        "d_embed": 6,
        "tie_projs": (False, True, True),
    },
    "gated": {"pre_lnorm": True, "gate": "gru"},
    "one_head_untied": {
        "n_head": 1,
        "d_head": 5,
        "cutoffs": (10, 30),
        "div_val": 2,
        "not_tied": True,
    },
} | {name: {"position": name} | settings for name, settings in ENCODINGS.items()}
"""Of softmax and hidden states in a queue, a shape for each position encoding, and some more."""
DECODER: dict[str, Any] = {
    "position": "rotary",
    "rope_scaling": "llama3",
    "rope_factor": 2.0,
    "rope_trained_len": 16,
    "norm": "rms",
    "pre_lnorm": True,
    "final_norm": True,
    "activation": "swiglu",
    "n_head": 4,
    "n_kv_head": 2,
    "qkv_bias": True,
    "qk_norm": True,
    "ff_bias": False,
    "scale_embedding": False,
    "softmax_bias": False,
    "not_tied": True,
}
"""A model as those of Llama's family are."""
LAYERS: dict[str, dict[str, Any]] = {
    "decoder": DECODER,
    "decoder_parallel": DECODER | {"parallel": True, "norm": "layer", "rope_part": 0.5},
    "decoder_reversible": DECODER | {"reversible": True},
    "grouped": {"n_head": 4, "n_kv_head": 1, "o_bias": True, "norm": "rms"},
    "reversible": {"pre_lnorm": True, "reversible": True},
    "same": {"recurrence": "same"},
    "same_reversible": {
        "recurrence": "same",
        "pre_lnorm": True,
        "reversible": True,
        "position": "alibi",
    },
}
RULE_SIZES = {"n_position": 64, "n_feature": 13, "lsh_round": 2, "lsh_bucket": 4, "lsh_reach": 3}
"""Of attention rules other than softmax, and of tables of the encodings that they are tried with."""
SCORELESS = [name for name, cls in POSITION_ENCODINGS.items() if not cls.needs_scores()]
KINDS = ({}, LAYERS["reversible"], LAYERS["same"])
OF_RULES: dict[str, dict[str, Any]] = {
    f"{rule}_{position}": RULE_SIZES
    | {"attention": rule, "position": position}
    | KINDS[(i + n) % len(KINDS)]
    for n, rule in enumerate(("performer", "lsh"))
    for i, position in enumerate(SCORELESS)
}
"""Rules with the encodings that they do not refuse, each in one of the kinds of layers."""
MEMORY_MODELS: dict[str, dict[str, Any]] = {
    "fifo": {"mem_len": 5},
    "no_memory": {"memory": "none"},
    "sinks": {"memory": "sinks", "n_sink": 2, "mem_len": 3},
    "decoder_sinks": DECODER | {"memory": "sinks", "n_sink": 2, "mem_len": 3},
    "compressive": {"memory": "compressive", "compress_rate": 2, "mem_len": 3, "compressed_len": 4},
    "expire_span": {
        "memory": "expire_span",
        "max_span": 12,
        "span_ramp": 2,
        "span_loss": 0.1,
        "mem_len": 8,
    },
    "decoder_expire_span": DECODER
    | {
        "memory": "expire_span",
        "spans_of": "normed",
        "max_span": 12,
        "span_ramp": 2,
        "span_loss": 0.1,
        "mem_len": 5,
    },
    "infini": {"memory": "infini", "mem_len": 5},
    "infini_delta": {"memory": "infini", "infini_update": "delta", "mem_len": 0},
    "knn": {"memory": "knn", "lookup_k": 4, "lookup_len": 7, "lookup_layer": 0, "mem_len": 3},
    "neural": {"memory": "neural", "mem_len": 3},
    "neural_two_layers": {"memory": "neural", "neural_layers": 2, "mem_len": 0},
    "decoder_neural": DECODER
    | {"memory": "neural", "rates_of": "normed", "forgets_to": "begin", "mem_len": 3},
    "recurrent_tokens": {"memory": "recurrent_tokens", "n_memory_token": 2, "mem_len": 0},
    "decoder_tokens": DECODER | {"memory": "recurrent_tokens", "n_memory_token": 2, "mem_len": 0},
    "toy": {"memory": "toy"},
}
"""One for each memory, and a toy, with the context in which it is read."""
MODELS = SHAPES | LAYERS | OF_RULES | MEMORY_MODELS
ALONE = {
    "pre_lnorm": {"pre_lnorm": True},
    "adaptive": {"cutoffs": (10, 30), "div_val": 2, "tie_projs": (False, True, True)},
    "adaptive_one_table": {"cutoffs": (10, 30), "d_embed": 6, "tie_projs": (False, True, True)},
    "untied": {"cutoffs": (10, 30), "div_val": 2, "not_tied": True},
}
"""One thing at a time, for tests outside this folder; the laws have them together."""
FAR = Context(tgt_len=12, mem_len=100)


def config_of(name: str, **changes: object) -> ModelConfig:
    """Of a model of the list."""
    return built(ModelConfig, SIZES | (MODELS | ALONE)[name] | changes)


def build(name: str, **changes: object) -> TransformerXL:
    """A model of the list."""
    config = config_of(name, **changes)
    if config.position == "floater":
        pytest.importorskip("torchdiffeq")
    model = TransformerXL(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    return model


def shape_of(name: str) -> dict[str, Any]:
    """What a line of the list says of the model, without its context."""
    return {key: value for key, value in MODELS[name].items() if key in names_of(ModelConfig)}


def context_of(name: str, **changes: Any) -> Context:
    """The context in which a model of the list is read: its own, or one that forgets nothing."""
    own = built(Context, {"tgt_len": 6} | MEMORY_MODELS[name]) if name in MEMORY_MODELS else FAR
    return own.overlaid(**changes)


def for_models(claims: Callable[[ModelConfig], bool] = lambda c: True) -> pytest.MarkDecorator:
    """Try a test on every model of the list that claims its law."""
    return pytest.mark.parametrize("name", [name for name in MODELS if claims(config_of(name))])


def is_cut_anywhere(c: ModelConfig) -> bool:
    """A layer reads what the layer below it read of every token, so that it does not matter where a text is cut."""
    return c.memory == "fifo" and c.recurrence == "below"


def counts_distances(c: ModelConfig) -> bool:
    """And it does not matter where the window begins. Random features are not invariant under rotations: keys that are
    turned by their place in [memory, segment] get estimates that agree in the mean only."""
    cls = POSITION_ENCODINGS[c.position]
    turns = cls.transform_qk is not PositionEncoding.transform_qk
    return (
        is_cut_anywhere(c)
        and not cls.places_hidden_states()
        and not (turns and c.attention == "performer")
    )


def clamps(model: TransformerXL) -> bool:
    """It has distances that can be clamped."""
    return model.layers[0].attn.pos.clamps


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MEMORIES, "toy", ToyMemory)


@pytest.fixture
def model(name: str, seeded: None) -> TransformerXL:
    return build(name, **SMALL | MODELS[name])


@pytest.fixture
def token_BT(seeded: None) -> Tensor:
    return torch.randint(0, N_TOKEN, (2, 12), generator=torch.Generator().manual_seed(1))


def read(
    model: TransformerXL | Frozen,
    token_BT: Tensor,
    sizes: list[int],
    context: Context,
    memory: Any = None,
    since_BT: Tensor | None = None,
) -> tuple[Tensor, Any]:
    """All hidden states and the last memory of a text read in segments of these sizes."""
    if memory is None and isinstance(model, Frozen):
        memory = model.fresh_memory(len(token_BT))
    hiddens = []
    marks = since_BT.split(sizes, dim=1) if since_BT is not None else [None] * len(sizes)
    for segment_BT, mark_BT in zip(token_BT.split(sizes, dim=1), marks, strict=True):
        hidden_BTD, memory = model(segment_BT, memory, context, mark_BT)
        hiddens.append(hidden_BTD)
    return torch.cat(hiddens, dim=1), memory


def other(token_BT: Tensor, places: slice, rows: slice = slice(None)) -> Tensor:
    """The text with other words at some places."""
    changed_BT = token_BT.clone()
    changed_BT[rows, places] = (changed_BT[rows, places] + 7) % N_TOKEN
    return changed_BT


def without_gradient(model: TransformerXL) -> Mapping[str, Tensor]:
    """The parameters that have none, or one that is not finite."""
    return {
        name: p
        for name, p in model.named_parameters()
        if p.grad is None or not p.grad.isfinite().all()
    }
