"""Checkpoints in forms that are not read, which are told by their files and refused with the way out."""

from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import NoReturn

from txl.config import UsageError
from txl.convert.source import PICKLES, Place, Source
from txl.convert.tensor_files import WEIGHTS
from txl.files import begins_with
from txl.runtime.records import read_json

_SAME = (
    "a TensorFlow checkpoint is not read; transfo-xl/transfo-xl-wt103 of the Hugging Face hub has"
    " the same weights, convert that folder"
)
_FORMS = {
    "adapter_config.json": "adapter",
    "adapter_model.*": "adapter",
    "*.gguf": (
        "a GGUF file of llama.cpp is not read; take the folder of the model that it was made from,"
        " with config.json and safetensors"
    ),
    "params.json": (
        "weights in the form of Meta or Mistral (params.json) are not read; take the model's folder"
        " in the form of Hugging Face, with config.json and safetensors"
    ),
    "tf_model.h5": (
        "tf_model.h5 is TensorFlow's and is not read; save it as PyTorch's from"
        " TFTransfoXLLMHeadModel with from_pt"
    ),
    "checkpoint": _SAME,
    **dict.fromkeys(("*.index", "*.meta", "*.ckpt", "*.h5"), _SAME),
}
"""What is said of a file of this name, or of a folder that holds one and no weights that are read."""


class Unread(Source):
    """Forms of checkpoints that are known, and refused."""

    name = "unread"
    kind = "no form that is read"

    @classmethod
    def recognises(cls, place: Place) -> bool:
        return _form_of(place.path) != ""

    @classmethod
    def read(cls, place: Place) -> NoReturn:
        what = _form_of(place.path)
        if what == "adapter":
            what = _of_adapter(place.folder)
        raise UsageError(f"{place.path}: {what}")


def _form_of(path: Path) -> str:
    """What is said of it; empty: nothing."""
    names = [path.name]
    if path.is_file() and begins_with(path, b"GGUF"):
        names.append("weights.gguf")
    if path.is_dir():
        names = [file.name for file in path.iterdir() if file.is_file()]
        if not {*WEIGHTS, *PICKLES}.isdisjoint(names):
            return ""
    for pattern, what in _FORMS.items():
        if any(fnmatch(name, pattern) for name in names):
            return what
    return ""


def _of_adapter(folder: Path) -> str:
    model = "its model"
    with suppress(OSError, ValueError, TypeError, KeyError):
        model = str(read_json(folder / "adapter_config.json")["base_model_name_or_path"])[:80]
    return (
        f"an adapter of PEFT is no model; merge it into {model} with peft's merge_and_unload, and"
        " name the folder that save_pretrained writes then"
    )
