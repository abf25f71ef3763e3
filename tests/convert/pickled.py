"""Files as other programs pickle them, made without their code: modules of classes that are gone afterwards."""

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from txl.convert import to_kimiyoung
from txl.model.transformer import TransformerXL


@contextmanager
def foreign(module: str, *names: str, base: type = nn.Module) -> Iterator[dict[str, type]]:
    """Classes of a module that is importable only inside."""
    there = ModuleType(module)
    classes = {name: type(name, (base,), {"__module__": module}) for name in names}
    there.__dict__.update(classes)
    sys.modules[module] = there
    try:
        yield classes
    finally:
        del sys.modules[module]


def save_original(
    path: Path,
    state: Mapping[str, Tensor],
    settings: Mapping[str, Any],
    *,
    zipped: bool = True,
    parallel: bool = False,
) -> None:
    """A `model.pt` as the 2019 train.py saves it: the module itself."""
    with foreign("mem_transformer", "MemTransformerLM", "Part") as classes:
        model = tree(state, classes)
        given = {
            k: v
            for k, v in settings.items()
            if k not in ("dropout", "dropatt", "tie_weight", "tie_projs")
        }
        model.__dict__.update(
            {k: v for k, v in given.items() if k not in ("pre_lnorm", "cutoffs", "div_val")}
        )
        model.d_embed = settings["d_embed"] or settings["d_model"]
        model.word_emb.div_val = settings["div_val"]
        model.crit.cutoffs = [*settings["cutoffs"], settings["n_token"]]
        model.drop = nn.Dropout(settings["dropout"])
        for layer in model.layers.children():
            layer.dec_attn.pre_lnorm = settings["pre_lnorm"]
        saved = nn.DataParallel(model) if parallel else model
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the older format would keep the source of the classes
            torch.save(saved, path, _use_new_zipfile_serialization=zipped)


def tree(state: Mapping[str, Tensor], classes: Mapping[str, type]) -> Any:
    """Modules inside modules that hold these tensors by these names."""
    root = classes["MemTransformerLM"]()
    for name, tensor in state.items():
        *path, last = name.split(".")
        here = root
        for part in path:
            if part not in here._modules:
                here.add_module(part, classes["Part"]())
            here = here._modules[part]
        if last == "inv_freq":
            here.register_buffer(last, tensor)
        else:
            here.register_parameter(last, nn.Parameter(tensor))
    return root


def save_nvidia(
    path: Path, model: TransformerXL, settings: Mapping[str, Any], words: Sequence[str]
) -> None:
    """A `checkpoint_best.pt` as NVIDIA's train.py saves it: its softmax has names of its own, and it lists shared
    projections once more."""
    state: dict[str, Tensor] = {}
    for name, tensor in to_kimiyoung(model).items():
        parts = name.split(".")
        if parts[:2] == ["crit", "out_layers"]:
            kind = {"weight": "weights", "bias": "biases"}[parts[3]]
            state[f"crit.out_layers_{kind}.{parts[2]}"] = tensor
        elif parts[:2] == ["crit", "out_projs"] and settings["tie_projs"][int(parts[2])]:
            continue
        else:
            state[name] = (
                tensor.flatten(2) if name == "r_emb" and settings["attn_type"] == 3 else tensor
            )
        if parts[:2] == ["word_emb", "emb_projs"]:
            state[f"crit.shared_out_projs.{parts[2]}"] = tensor
    with foreign("vocabulary", "Vocab", base=object) as classes:
        vocab = classes["Vocab"]()
        vocab.idx2sym = list(words)  # type: ignore[attr-defined]
        content = {"model_config": settings, "model_state": state, "vocab": vocab, "train_step": 3}
        torch.save(content, path)
