"""NVIDIA's checkpoints (DeepLearningExamples, Transformer-XL, PyTorch): `checkpoint_best.pt`,
`checkpoint_last.pt`.
"""

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from txl.config import UsageError, require
from txl.convert.kimiyoung import from_kimiyoung, unwrapped
from txl.convert.kimiyoung_arguments import CONSTRUCTOR
from txl.convert.source import DATA, Found, Place, Source

_RENAMED = (
    (r"crit\.out_layers_weights\.(\d+)", r"crit.out_layers.\1.weight"),
    (r"crit\.out_layers_biases\.(\d+)", r"crit.out_layers.\1.bias"),
)


def is_nvidia(content: Any) -> bool:
    """True if a pickled file holds what NVIDIA's train.py saves."""
    return isinstance(content, dict) and {"model_config", "model_state"} <= content.keys()


def read_nvidia(content: Any, path: Path) -> tuple[dict[str, Tensor], dict[str, Any], list[str]]:
    """Weights in the 2019 code's names and constructor arguments, for `from_kimiyoung`; and the
    words, if there are any, of what `read_pickle` found in a file. Raises `UsageError` if it is
    damaged.

    Its softmax keeps weights and biases in lists of their own and lists shared projections once
    more.
    """
    held = content["model_state"]
    given = content["model_config"]
    try:
        state = {}
        for name, tensor in held.items():
            state[unwrapped(str(name))] = tensor.read()
        arguments = {}
        for name, value in given.items():
            if name in CONSTRUCTOR:
                arguments[name] = value
    except (AttributeError, ValueError) as error:
        raise UsageError(f"{path}: damaged ({error}); use another copy") from None
    for name in [name for name in state if name.startswith("crit.shared_out_projs.")]:
        first = name.replace("crit.shared_out_projs", "word_emb.emb_projs")
        same = first in state and torch.equal(state[name], state[first])
        require(same, f"{name}: differs from {first}, with which it is shared")
        del state[name]
    for pattern, ours in _RENAMED:
        state = {re.sub(pattern, ours, name): tensor for name, tensor in state.items()}
    words = getattr(content.get("vocab"), "idx2sym", [])
    return state, arguments, [str(word) for word in words]


class Nvidia(Source):
    """NVIDIA's checkpoints."""

    name = "nvidia"
    kind = "NVIDIA DeepLearningExamples"

    @classmethod
    def recognises(cls, place: Place) -> bool:
        return is_nvidia(place.content)

    @classmethod
    def read(cls, place: Place) -> Found:
        assert place.pickle is not None
        state, arguments, words = read_nvidia(place.content, place.pickle)
        model, context = from_kimiyoung(state, arguments)
        data = place.content.get(DATA)
        return Found(model, context, tuple(state), place.pickle, words, data)
