"""A memory that is kept: what a model has read of a text, in a file of safetensors.

    memory = lm.read(text)
    memory.save("book.memory")
    lm.generate("In the end", memory=txl.load_memory("book.memory"))

The file holds the hidden states at the end of the last whole segment, as `memory.0`, `memory.0.name`
and so on, and the ids since (`since`, `again`). Its metadata say of which model and vocabulary it is,
in which context and dtype the text was read, and the digests of the text and of the file's content.
What is read with it is what would be read in one piece; of a model in bfloat16 the hidden states are
rounded to it.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_args
from weakref import WeakKeyDictionary

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from txl.checkpoint import save_tensors
from txl.config import Context, Dtype, ModelConfig, UsageError, as_dict, require
from txl.data_utils.tokens import Tokenizer
from txl.files import errors_naming, require_readable
from txl.inference.kept import Begun, is_finite, misfit, n_whole, read_on
from txl.model.streams import of_named
from txl.model.transformer import TransformerXL
from txl.registry import PARTS, default_of, setting_in, settings_before
from txl.runtime.log import progress
from txl.runtime.outputs import Kind, output
from txl.runtime.records import parse_json, require_fields

FORMAT = 1
_KEY = "txl memory"
"""Of the metadata, which are one JSON object: several keys would have no order."""
_FIELDS = {
    "format": int,
    "model": str,
    "vocabulary": str,
    "dtype": str,
    "context": dict[str, Any],
    "n_token": int,
    "texts": list[str],
    "digest": str,
}
_DIGEST = re.compile(r"[0-9a-f]{64}")
_STATE = re.compile(r"memory\.(\d+(?:\.\w+)?)", re.ASCII)
_IDS = ("again", "since")
_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64)
_AGAIN = "read the text again with txl read"


@dataclass(frozen=True)
class WhoRead:
    """Who has read: which model, with which words, in which dtype.

    Attributes:
        model: hex digest of its weights and configuration.
        vocabulary: hex digest of its words.
        dtype: name of that of its matrix products.
    """

    model: str
    vocabulary: str
    dtype: str

    @classmethod
    def of(cls, model: TransformerXL, tokenizer: Tokenizer, dtype: torch.dtype) -> "WhoRead":
        """That of a language model."""
        name = str(dtype).removeprefix("torch.")
        return cls(digest_of_model(model), tokenizer.fingerprint(), name)


@dataclass(frozen=True, eq=False)
class KeptMemory:
    """What a model has read of a text. `LanguageModel.read` makes one, and reads on with it.

    Attributes:
        reader: no other model can use it.
        texts: hex digests (SHA-256 of UTF-8) of the texts that were read, in their order.
        name: for messages: the file that it was loaded from.
    """

    begun: Begun = field(repr=False)
    reader: WhoRead
    texts: tuple[str, ...] = ()
    name: str = "the memory"

    @property
    def context(self) -> Context:
        """How the text was read, and how what follows will be."""
        return self.begun.context

    @property
    def n_token(self) -> int:
        """Tokens that were read, with those that the tokenizer puts before a text."""
        return self.begun.n_token

    def require_of(self, model: TransformerXL, tokenizer: Tokenizer, dtype: torch.dtype) -> None:
        """Raise `UsageError` unless this model has read it."""
        me = WhoRead.of(model, tokenizer, dtype)
        theirs = self.reader
        require(
            theirs.dtype == me.dtype,
            f"{self.name}: was read in {theirs.dtype}, and the model computes in {me.dtype}; give"
            f" --dtype {theirs.dtype}, or {_AGAIN}",
        )
        require(
            theirs.model == me.model,
            f"{self.name}: was read by another model, or by this one with other weights or another"
            f" --memory; name the run and the memory that have read it, or {_AGAIN}",
        )
        require(
            theirs.vocabulary == me.vocabulary,
            f"{self.name}: was read with another vocabulary; name that one, or {_AGAIN}",
        )
        why = misfit(model, self.begun, dtype)
        if why:
            raise _damaged(self.name, why)

    def save(self, path: str | Path) -> None:
        """Write it to a file, see `output`. Raises `UsageError` if something other than a memory has
        this name, `OSError` if it cannot be written.
        """
        path = Path(path)
        begun = self.begun
        tensors = {}
        for name, tensor in begun.memory.named().items():
            if name.isdigit() and self.reader.dtype == "bfloat16":
                tensor = tensor.bfloat16()
            tensors[f"memory.{name}"] = tensor
        for name in _IDS:
            tensors[name] = torch.tensor([getattr(begun, name)], dtype=torch.int64)
        record: dict[str, Any] = {
            "format": FORMAT,
            **vars(self.reader),
            "context": as_dict(begun.context),
            "n_token": begun.n_token,
            "texts": self.texts,
        }
        record["digest"] = _digest_of(record, tensors)
        with output(path, MEMORY) as temporary:
            save_tensors(temporary, tensors, {_KEY: json.dumps(record)})


def read_text(
    text: str, ids: Sequence[int], memory: KeptMemory, model: TransformerXL
) -> KeptMemory:
    """The memory after the ids of a text more; a progress bar shows the segments.

    The model is that of the memory. Raises `UsageError` if hidden states are not finite.
    """
    with progress("reading", n_whole(memory.begun, len(ids)), shown=True) as bar:
        begun = read_on(model, memory.begun, ids, after_segment=bar.update)
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return KeptMemory(begun, memory.reader, (*memory.texts, digest))


def _is_memory(path: Path) -> bool:
    try:
        _record(path)
    except UsageError:
        return False
    return True


MEMORY = Kind("txl read", _is_memory)


def load_memory(path: str | Path) -> KeptMemory:
    """The memory in a file. That it is of the model is checked when it is used.

    Raises:
        UsageError: if there is no such file, it is no memory, or it is damaged.
    """
    path = Path(path)
    record = _record(path)
    try:
        reader, texts, context, n_token = _of_record(record)
        tensors = _tensors(path)
        # files of older versions have none
        if "digest" in record and record["digest"] != _digest_of(record, tensors):
            raise ValueError("its digest is that of another content")
        begun = _begun(tensors, context, n_token)
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        raise _damaged(str(path), str(error)) from None
    return KeptMemory(begun, reader, texts, name=str(path))


def _record(path: Path) -> dict[str, Any]:
    """What the header of a memory says. Raises `UsageError` if there is none, or it is damaged."""
    make = "make one with txl read FILE --to book.memory"
    try:
        require_readable(path)
        with safe_open(path, framework="pt") as file:
            said = (file.metadata() or {}).get(_KEY)
    except FileNotFoundError:
        make = f"make it with txl read FILE --to {path}"
        raise UsageError(f"{path}: no such file; {make}") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; {make}") from None
    except SafetensorError:
        raise UsageError(f"{path}: is no memory, or it was cut short; {make}") from None
    if said is None:
        raise UsageError(f"{path}: holds tensors, and is no memory of txl; {make}")
    try:
        record = parse_json(said.encode())
        if isinstance(record, dict) and record.get("format") == FORMAT:
            return require_fields(record, _FIELDS)
    except ValueError as error:
        raise _damaged(str(path), str(error)) from None
    raise UsageError(f"{path}: is of another format than this txl reads; upgrade, or {_AGAIN}")


def _of_record(record: dict[str, Any]) -> tuple[WhoRead, tuple[str, ...], Context, int]:
    """Who has read, the texts, the context and the number of tokens. Raises `ValueError` or
    `KeyError` if a field is missing or impossible.
    """
    reader = WhoRead(*(record[f.name] for f in fields(WhoRead)))
    texts = tuple(record["texts"])
    if not all(map(_is_digest, (*texts, reader.model, reader.vocabulary))):
        raise ValueError("its digests are none")
    if reader.dtype not in get_args(Dtype):
        raise ValueError("of no known dtype")
    context = Context(**require_fields(record["context"], Context))
    return reader, texts, context, record["n_token"]


def _digest_of(record: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Of all that a memory's file holds."""
    said = {name: value for name, value in record.items() if name != "digest"}
    return _hashed(said, tensors)


def _is_digest(value: str) -> bool:
    return _DIGEST.fullmatch(value) is not None


def _tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file. Raises `ValueError` if there is one of an unknown type."""
    tensors = {}
    with errors_naming(path), safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118
            tensors[name] = file.get_tensor(name)
            if tensors[name].dtype not in _DTYPES:
                raise ValueError(f"{name} is of {tensors[name].dtype}")
    return tensors


def _begun(tensors: dict[str, Tensor], context: Context, n_token: int) -> Begun:
    """The text that these tensors are of. Raises `ValueError`, `KeyError` or `IndexError` if they are
    of none.
    """
    ids = {}
    for name in _IDS:
        ids_1L = tensors.pop(name)
        if ids_1L.dtype != torch.int64 or ids_1L.ndim != 2 or len(ids_1L) != 1:
            raise ValueError(f"{name} is no row of ids")
        ids[name] = tuple(ids_1L[0].tolist())
    states = {}
    for name, tensor in tensors.items():
        match = _STATE.fullmatch(name)
        if match is None:
            raise ValueError(f"it holds {name!r}")
        if tensor.dtype == torch.bfloat16:
            tensor = tensor.float()
        states[match[1]] = tensor
    memory = of_named(states)
    if not is_finite(memory):
        raise ValueError("it holds states that are not finite numbers")
    return Begun(context, memory, ids["again"], ids["since"], n_token)


def _damaged(name: str, why: str) -> UsageError:
    return UsageError(f"{name}: damaged ({why}); {_AGAIN}")


# digests of models

_Versions = tuple[tuple[int, int], ...]
_KNOWN: WeakKeyDictionary[TransformerXL, tuple[ModelConfig, _Versions, str]] = WeakKeyDictionary()
"""Digests of models that are there, and of which configuration and weights."""


def digest_of_model(model: TransformerXL) -> str:
    """Hex digest of the weights, bit by bit, and of the configuration, the memory's rule included.
    Settings at their defaults do not count, so that new ones change nothing. A second takes 1 to 2
    GB; it is computed again if the memory was exchanged, or weights changed in place (but not by
    their `data`, which PyTorch does not count).
    """
    versions = tuple((id(weight), weight._version) for weight in model.parameters())
    known = _KNOWN.get(model)
    if known is not None and known[:2] == (model.config, versions):
        return known[2]
    digest = _hashed(_settings(model.config), model.state_dict())
    _KNOWN[model] = (model.config, versions, digest)
    return digest


def _hashed(settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Hex digest of settings, and of tensors bit by bit."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        content = tensor.detach().cpu().contiguous().flatten()
        digest.update(content.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _settings(config: ModelConfig) -> dict[str, Any]:
    """What differs from the defaults, or from what models had before there was the setting."""
    defaults = as_dict(ModelConfig())
    found = {}
    for name, value in as_dict(config).items():
        if name != "own" and value != defaults[name]:
            found[name] = value
    before = settings_before(config.memory)
    for name, value in config.own.items():
        f = setting_in(PARTS, name)
        if f is None or value != before.get(name, default_of(f)):
            found[name] = value
    return found
