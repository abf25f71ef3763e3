"""Small random decoders of transformers, in float64 throughout.

python -m tests.hf.llamas writes tests/golden/llama.json
"""

import json
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 96,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
LLAMA_3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}
OWN_YARN = YARN | {
    "beta_fast": 3.5,
    "beta_slow": 0.3,
    "truncate": False,
    "mscale": 0.7,
    "mscale_all_dim": 0.4,
}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.5, 2.0],
    "long_factor": [1.0, 2.0, 5.5, 40.0],
    "factor": 8.0,
}
PARTLY = {"rope_type": "default", "rope_theta": 9000.0, "partial_rotary_factor": 0.5}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama 2": ("Llama", {"num_key_value_heads": 4, "head_dim": 6}),
    "llama 3": (
        "Llama",
        {"rope_theta": 500_000.0, "rope_scaling": LLAMA_3, "rope_parameters": LLAMA_3},
    ),
    "llama of biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, linear": ("Llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.5}}),
    "smollm": (
        "Llama",
        {
            "hidden_size": 36,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "tie_word_embeddings": True,
            "rope_theta": 100_000.0,
        },
    ),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral, window": ("Mistral", {"sliding_window": 11}),
    "qwen2": ("Qwen2", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 10}),
    "gpt_neox": ("GPTNeoX", {"hidden_size": 32, "rope_parameters": PARTLY}),
    "gpt_neox in turn": (
        "GPTNeoX",
        {
            "hidden_size": 32,
            "use_parallel_residual": False,
            "attention_bias": False,
            "rope_parameters": PARTLY,
        },
    ),
    "qwen3 of biases": ("Qwen3", {"attention_bias": True}),
    "qwen3, yarn": ("Qwen3", {"rope_scaling": YARN}),
    "llama, yarn": ("Llama", {"rope_scaling": OWN_YARN, "rope_theta": 500.0, "hidden_act": "gelu"}),
    "llama, longrope, few": (
        "Llama",
        {"rope_scaling": LONGROPE | {"original_max_position_embeddings": 30}},
    ),
    "llama, longrope, many": (
        "Llama",
        {
            "rope_scaling": LONGROPE | {"attention_factor": 1.3},
            "original_max_position_embeddings": 10,
            "hidden_act": "gelu_pytorch_tanh",
        },
    ),
    "gpt_neox, yarn": (
        "GPTNeoX",
        {"hidden_size": 32, "hidden_act": "gelu_fast", "rope_parameters": PARTLY | YARN},
    ),
}


def build(kind: str) -> Any:
    """A model with the same weights at each call, biases and norms drawn too."""
    import transformers

    name, changes = KINDS[kind]
    settings = SIZES | changes
    if "rope_theta" in settings:
        theta = {"rope_theta": settings["rope_theta"]}
        settings["rope_parameters"] = (
            {"rope_type": "default"} | theta | settings.get("rope_scaling", {})
        )
    torch.manual_seed(7)
    config = getattr(transformers, f"{name}Config")(**settings)
    config._attn_implementation = "sdpa"  # whose softmax is in float64
    model = getattr(transformers, f"{name}ForCausalLM")(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (parameter.ndim == 1))
    return model


def _normed(self: Any, hidden_states: Tensor) -> Tensor:
    mean_square = hidden_states.square().mean(-1, keepdim=True)
    return hidden_states * torch.rsqrt(mean_square + self.variance_epsilon) * self.weight


def _angles(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    angle_BLC = position_ids[..., None].double() * self.inv_freq.double()
    both = torch.cat([angle_BLC, angle_BLC], dim=-1)
    return both.cos() * self.attention_scaling, both.sin() * self.attention_scaling


@contextmanager
def in_float64() -> Iterator[None]:
    """transformers takes norms and angles in float32 whatever the dtype of a model: here it does
    not.
    """
    from transformers.modeling_rope_utils import dynamic_rope_update
    from transformers.models.gpt_neox import modeling_gpt_neox
    from transformers.models.llama import modeling_llama
    from transformers.models.mistral import modeling_mistral
    from transformers.models.qwen2 import modeling_qwen2
    from transformers.models.qwen3 import modeling_qwen3

    with ExitStack() as stack:
        for module, name in (
            (modeling_llama, "Llama"),
            (modeling_mistral, "Mistral"),
            (modeling_qwen2, "Qwen2"),
            (modeling_qwen3, "Qwen3"),
            (modeling_gpt_neox, "GPTNeoX"),
        ):
            norm = getattr(module, f"{name}RMSNorm", None)
            rotary = getattr(module, f"{name}RotaryEmbedding")
            if norm is not None:
                stack.enter_context(mock.patch.object(norm, "forward", _normed))
            stack.enter_context(mock.patch.object(rotary, "forward", dynamic_rope_update(_angles)))
        yield


GOLDEN = Path(__file__).parents[1] / "golden" / "llama.json"
"""Of each kind its config.json and some of its logits."""
EVERY = 7
"""Of the logits after the last token one in so many is kept."""


def weight(name: str, shape: tuple[int, ...]) -> Tensor:
    """Numbers that look drawn, by a formula: no file needs to hold them."""
    place = torch.arange(math.prod(shape), dtype=torch.float64)
    drawn = 0.4 * torch.sin(place.square() * 0.37 + sum(name.encode()))
    return drawn.view(shape) + (len(shape) == 1)


def in_file(kind: str, name: str) -> str:
    """The name of a parameter in the files of a model."""
    if "gpt_neox" in kind:
        return name.replace("lm_head.", "embed_out.")
    return name


def golden_ids() -> Tensor:
    return (torch.arange(30) ** 2 * 7 % SIZES["vocab_size"])[None]


@torch.no_grad()
def write_golden() -> None:
    """What transformers gives, for tests without it."""
    golden = {}
    for kind in KINDS:
        model = build(kind)
        for name, parameter in model.named_parameters():
            parameter.copy_(weight(in_file(kind, name), tuple(parameter.shape)))
        with in_float64():
            logit_V = model(golden_ids()).logits[0, -1]
        config = model.config.to_diff_dict()
        del config["transformers_version"]
        golden[kind] = {"config": config, "logits": logit_V[::EVERY].tolist()}
    GOLDEN.write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    write_golden()
