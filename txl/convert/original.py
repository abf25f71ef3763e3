"""The 2019 code's files: `model.pt`, a pickled module, and `cache.pt`, a pickled corpus."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from txl.config import UsageError, require
from txl.convert.kimiyoung import RATES, from_kimiyoung
from txl.convert.pickles import Inert, PickledTensor, read_pickle
from txl.convert.source import DATA, Found, Place, Source
from txl.files import regular
from txl.runtime.records import require_fields

_ARGUMENTS_BYTES = 2**16
"""Of a log, in which all arguments are."""
_LENGTHS = ("tgt_len", "mem_len", "ext_len", "same_length", "clamp_len")
_SIZES = ("n_token", "d_embed", "d_model", "n_head", "d_head", "n_layer", "attn_type")

_EXPORTED: dict[str, Any] = {
    **dict.fromkeys(
        "n_token n_layer n_head d_model d_head d_inner d_embed div_val attn_type".split(), int
    ),
    **dict.fromkeys("tgt_len ext_len mem_len clamp_len".split(), int),
    **dict.fromkeys("tie_weight pre_lnorm same_length".split(), bool),
    **dict.fromkeys(RATES, float),
    "tie_projs": list[bool],
    "cutoffs": list[int],
}
"""Types of the arguments that `--to original` writes."""


def read_original(model: Any, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and constructor arguments, for `from_kimiyoung`, of what `read_pickle` found in a
    `model.pt` of the 2019 code. Raises `UsageError` if it is damaged or something else.
    """
    # as --to original writes it
    if isinstance(model, dict) and {"arguments", "state_dict"} <= model.keys():
        try:
            arguments = require_fields(model["arguments"], _EXPORTED)
            require(
                all(0 <= arguments.get(name, 0) < 1 for name in RATES), "dropout is no probability"
            )
            state = {}
            for name, tensor in model["state_dict"].items():
                state[str(name)] = tensor.read()
            return state, arguments
        except (AttributeError, TypeError, ValueError) as error:
            raise UsageError(f"{path}: damaged ({error}); use another copy") from None
    if isinstance(model, dict) and any(
        isinstance(value, PickledTensor) for value in _values(model)
    ):
        what = "holds weights alone (a state dict), which do not say the sizes of the model"
        raise UsageError(
            f"{path}: {what}; save the model itself, as its train.py does: torch.save(model, path)"
        )
    if not isinstance(model, Inert) or not hasattr(model, "_modules"):
        raise UsageError(f"{path}: holds no module of the 2019 code; give its model.pt")
    if hasattr(model, "module") or "module" in model._modules:  # DataParallel
        model = model._modules["module"]
    try:
        state = {}
        for name, tensor in _tensors(model):
            state[name] = tensor.read()
        layer = model._modules["layers"]._modules["0"]
        dropatt = layer._modules["dec_attn"]._modules.get("dropatt")
        arguments = {}
        for name in (*_SIZES, *_LENGTHS):
            arguments[name] = getattr(model, name)
        arguments |= {
            "pre_lnorm": bool(layer._modules["dec_attn"].pre_lnorm),
            "div_val": model._modules["word_emb"].div_val,
            "cutoffs": list(model._modules["crit"].cutoffs)[:-1],
            "dropout": float(model._modules["drop"].p),
            "dropatt": 0.0 if dropatt is None else float(dropatt.p),
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path}: no complete MemTransformerLM of the 2019 code ({error}); use another copy"
        ) from None
    if "r_emb" in state:
        arguments |= _lengths_of_table(arguments, n_row=state["r_emb"].shape[1])
    return state, arguments


def _lengths_of_table(arguments: Mapping[str, Any], *, n_row: int) -> dict[str, int]:
    """The lengths of a model with a table of n_row positions, as many as tgt_len, ext_len and
    mem_len together at its construction: as the file holds them, or, where its `reset_length`
    changed them since, others of that sum.
    """
    lengths = {}
    for name in ("tgt_len", "ext_len", "mem_len"):
        lengths[name] = int(arguments[name] or 0)
    if sum(lengths.values()) == n_row:
        return lengths
    # a key needs it there
    if arguments["same_length"]:
        mem_len = min(lengths["mem_len"], n_row - 1)
    else:
        mem_len = 0
    return {"tgt_len": n_row - mem_len, "ext_len": 0, "mem_len": mem_len}


def _values(state: dict[Any, Any]) -> Iterator[Any]:
    """The values of a dict, and of the dicts in it."""
    for value in state.values():
        yield from value.values() if isinstance(value, dict) else (value,)


def logged_dataset(log: Path) -> str | None:
    """The data set that the 2019 train.py has noted at the beginning of its log.txt, among all its
    arguments; None: there is no such file, or it does not say.
    """
    try:
        with open(log, "rb", opener=regular) as file:
            begin = file.read(_ARGUMENTS_BYTES).decode(errors="replace")
    except OSError:
        return None
    found = re.search(r"^    - dataset : (\S+)$", begin, re.MULTILINE)
    if found is None:
        return None
    return found[1]


def words_of_pickle(path: Path) -> list[str]:
    """The words in a pickled vocabulary, in the order of their ids: `cache.pt` of the 2019 code or
    of NVIDIA's, or Hugging Face's `vocab.bin` or `vocab.pkl`. Raises `UsageError` if the file is
    damaged or holds no vocabulary.
    """
    found = read_pickle(path)
    holder = getattr(found, "vocab", found)
    if isinstance(holder, dict):
        fields: Mapping[str, Any] = holder
    else:
        fields = getattr(holder, "__dict__", {})
    words = fields.get("idx2sym")
    good = isinstance(words, list) and all(isinstance(word, str) for word in words)
    require(
        good and bool(words),
        f"{path}: holds no vocabulary (idx2sym); give cache.pt, vocab.bin or vocab.txt",
    )
    return list(words or ())


def _tensors(module: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, PickledTensor]]:
    """Parameters and buffers by their names in the state dict."""
    if depth > 8:
        raise ValueError("modules inside modules without end")
    for kind in ("_parameters", "_buffers"):
        for name, tensor in getattr(module, kind).items():
            if isinstance(tensor, PickledTensor):
                yield prefix + name, tensor
            elif tensor is not None:
                raise ValueError(f"{prefix}{name} is no tensor")
    for name, child in module._modules.items():
        if child is not None:
            yield from _tensors(child, f"{prefix}{name}.", depth + 1)


class Original(Source):
    """Checkpoints of kimiyoung/transformer-xl, and what `--to original` writes."""

    name = "original"
    kind = "kimiyoung/transformer-xl"

    @classmethod
    def recognises(cls, place: Place) -> bool:
        return place.pickle is not None

    @classmethod
    def read(cls, place: Place) -> Found:
        assert place.pickle is not None
        state, arguments = read_original(place.content, place.pickle)
        model, context = from_kimiyoung(state, arguments)
        data = None
        if isinstance(place.content, dict):
            data = place.content.get(DATA)
        dataset = logged_dataset(place.folder / "log.txt")
        return Found(model, context, tuple(state), place.pickle, [], data, dataset)
