"""Reads pickled checkpoints without running anything they contain.

Two formats of torch.save are known: zip archives (PyTorch 1.6 and newer) and the older one, in
which tensors follow the pickle; besides these, plain pickles. Classes are never imported: an
instance of an unknown class becomes an `Inert` with its attributes, a call of an unknown function
an `Inert` with its arguments. Only the modules of programs that write such files may be named at
all.
"""

import codecs
import io
import math
import pickle
import pickletools
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from txl.config import UsageError
from txl.files import regular, require_readable

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_NAMEABLE = (
    "torch numpy collections argparse apex mem_transformer proj_adaptive_softmax vocabulary"
    " data_utils utils lamb transformers pytorch_transformers pytorch_pretrained_bert re sacremoses"
    " tokenizers"
).split()
"""Top-level modules that checkpoints of the programs we read may name; instances of their classes
are inert.
"""
_BYTE_STRINGS = "txl_byte_strings"
_BUILTINS = (
    "set",
    "frozenset",
    "list",
    "dict",
    "tuple",
    "bytearray",
    "complex",
    "slice",
    "range",
    "object",
)
_OPCODES = {op.code: op for op in pickletools.opcodes}
_DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


def _of_byte_strings(name: str) -> codecs.CodecInfo | None:
    """Byte strings, which only Python 2 pickles as strings: UTF-8 (a vocabulary's words), or else
    any bytes.
    """

    def decode(encoded: Any, errors: str = "strict") -> tuple[str, int]:
        content = bytes(encoded)
        try:
            return content.decode(), len(content)
        except UnicodeDecodeError:
            return content.decode("latin1"), len(content)

    if name == _BYTE_STRINGS:
        return codecs.CodecInfo(codecs.latin_1_encode, decode, name=name)
    return None


codecs.register(_of_byte_strings)


class Inert:
    """A stand-in for an object of a class that is not imported, or for the result of a function
    that is not called.
    """

    name = ""
    _modules: dict[str, Any]  # of a torch.nn.Module; not there in others

    def __init__(self, *args: Any, **settings: Any) -> None:
        self.args = args
        self.__dict__.update(settings)

    def __setstate__(self, state: Any) -> None:
        # (__dict__, slots)
        if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
            state = (state[0] or {}) | state[1]
        if isinstance(state, dict):
            self.__dict__.update({str(key): value for key, value in state.items()})
        else:
            self.__dict__["state"] = state

    # what a pickle does to lists and dicts whose class is not imported
    def append(self, value: Any) -> None:
        self.__dict__.setdefault("items", []).append(value)

    def extend(self, values: Any) -> None:
        self.__dict__.setdefault("items", []).extend(values)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__dict__.setdefault("entries", {})[key] = value


@dataclass
class _Storage:
    """Numbers in a file: their type, how many, and the bytes once they are read."""

    dtype: torch.dtype
    numel: int
    content: bytearray | None = field(default=None, repr=False)


@dataclass(frozen=True)
class PickledTensor:
    """A tensor of the file, read when asked for."""

    storage: _Storage = field(repr=False)
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def read(self) -> Tensor:
        """The tensor. Tensors of one storage share its memory: a small file may have many. Raises
        `ValueError` if it reaches beyond its storage.
        """
        storage = self.storage
        last = self.offset
        for n, step in zip(self.shape, self.stride, strict=True):
            last += (n - 1) * step
        is_empty = 0 in self.shape
        is_too_large = not is_empty and (
            last >= storage.numel or math.prod(self.shape) > storage.numel
        )
        if min((self.offset, *self.shape, *self.stride), default=0) < 0 or is_too_large:
            raise ValueError("a tensor reaches beyond its storage")
        if storage.content is None:
            raise ValueError("a tensor has no storage")
        if is_empty:
            return torch.empty(self.shape, dtype=storage.dtype)
        flat = torch.frombuffer(storage.content, dtype=storage.dtype)
        return flat.as_strided(self.shape, self.stride, self.offset)


def read_pickle(path: Path) -> Any:
    """What a pickled file holds: builtin types, `PickledTensor`s, and `Inert` objects. Raises
    `UsageError` if the file is damaged, is none of the known formats, or names what no checkpoint
    has.
    """
    try:
        require_readable(path)
        with open(path, "rb", opener=regular) as file:
            is_zip = zipfile.is_zipfile(file)
            file.seek(0)
            if is_zip:
                return _read_zip(path, file)
            return _read_stream(file)
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror or error}; name a file that can be read"
        ) from None
    except Exception as error:  # whatever a damaged pickle makes the unpickler raise
        if str(error):
            what = str(error).splitlines()[0][:120]
        else:
            what = type(error).__name__
        raise UsageError(f"{path}: damaged, or no checkpoint ({what}); use another copy") from None


def _read_zip(path: Path, file: BinaryIO) -> Any:
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        storages: dict[str, _Storage] = {}
        main = next(
            (name for name in names if name.endswith("/data.pkl") or name == "data.pkl"), None
        )
        if main is None:
            raise UsageError(
                f"{path}: a zip archive without data.pkl; name a file that torch.save wrote"
            )
        folder = main.removesuffix("data.pkl")
        left = path.stat().st_size

        def entry(name: str) -> bytes:
            """What is stored as it is, as torch.save does; all together no more
            than the file has.
            """
            nonlocal left
            info = archive.getinfo(f"{folder}{name}")
            left -= info.file_size
            if info.compress_type != zipfile.ZIP_STORED or left < 0:
                raise ValueError(f"{name} is compressed, which torch.save never does")
            return archive.read(info)

        def storage(dtype: torch.dtype, key: str, numel: int) -> _Storage:
            if key not in storages:
                storages[key] = _Storage(dtype, numel, bytearray(entry(f"data/{key}")))
            found = storages[key]
            if len(found.content or ()) != numel * dtype.itemsize:
                raise ValueError(f"storage {key} has another size than the pickle says")
            if found.dtype == dtype:
                return found
            return _Storage(dtype, numel, found.content)

        if f"{folder}byteorder" in names and entry("byteorder") != b"little":
            raise UsageError(f"{path}: written on a big-endian machine, which is not supported")
        return _load(io.BytesIO(entry("data.pkl")), path, storage)


def _read_stream(file: BinaryIO) -> Any:
    path = Path(file.name)
    storages: dict[str, _Storage] = {}

    def storage(dtype: torch.dtype, key: str, numel: int) -> _Storage:
        return storages.setdefault(key, _Storage(dtype, numel))

    def load() -> Any:
        return _load(file, path, storage)

    first = load()
    if first != _LEGACY_MAGIC:
        return first  # a plain pickle
    protocol = load()
    system = load()
    if protocol != 1001 or not isinstance(system, dict) or not system.get("little_endian", True):
        raise UsageError(
            f"{path}: torch.save's format {protocol}, or of a big-endian machine; not supported"
        )
    content = load()
    for key in load():
        numel = int.from_bytes(file.read(8), "little")
        found = storages[key]
        found.content = bytearray(
            file.read(numel * found.dtype.itemsize) if numel == found.numel else b""
        )
        if len(found.content) != found.numel * found.dtype.itemsize:
            raise ValueError("truncated")
    return content


def _load(file: BinaryIO, path: Path, storage: Any) -> Any:
    """One pickle.

    Its opcodes are looked at first: a memo index far beyond those used takes all memory there is.
    """
    start = file.tell()
    for n_op, (name, argument) in enumerate(_opcodes(file)):
        if "PUT" in name and isinstance(argument, int) and argument > n_op:
            raise ValueError("a memo index beyond all that is memoized")
    file.seek(start)
    return _Unpickler(file, path, storage).load()


def _opcodes(file: BinaryIO) -> Iterator[tuple[str, Any]]:
    """The opcodes of a pickle with their arguments. (`pickletools.genops` stops at a quoted byte
    string that is not ASCII, as protocol 0 of Python 2 has them.)
    """
    while code := file.read(1):
        op = _OPCODES[code.decode("latin1")]
        if op.name == "STRING":
            file.readline()
        yield op.name, op.arg.reader(file) if op.arg is not None and op.name != "STRING" else None
        if op.name == "STOP":
            return


class _Unpickler(pickle.Unpickler):
    """Imports nothing and calls nothing but what is written here."""

    def __init__(self, file: BinaryIO, path: Path, storage: Any) -> None:
        super().__init__(file, encoding=_BYTE_STRINGS)
        self._path = path
        self._storage = storage

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _KNOWN:
            return _KNOWN[module, name]
        if module == "torch" and name in _DTYPES:
            return type(name, (Inert,), {"dtype": _DTYPES[name]})
        if module.startswith("torch._dynamo"):
            advice = "save the model inside it: torch.save(model._orig_mod, path)"
            raise UsageError(
                f"{self._path}: holds a model that torch.compile has wrapped; {advice}"
            )
        is_builtin = module in ("builtins", "__builtin__") and name in _BUILTINS
        if module.split(".")[0] not in _NAMEABLE and not is_builtin:
            raise UsageError(
                f"{self._path}: names {module}.{name}, which no checkpoint needs; it is not read"
            )
        return type(name, (Inert,), {"name": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> Any:
        kind, *rest = pid
        if kind == "module":  # (class, source file, source), of the older format
            return rest[0]
        if kind != "storage":
            raise ValueError(f"persistent id {kind!r}")
        kind_of_storage, key, _, numel = rest[:4]
        if not isinstance(numel, int) or numel < 0:
            raise ValueError("a storage of no size")
        return self._storage(kind_of_storage.dtype, str(key), numel)


def _rebuild_tensor(
    storage: _Storage, offset: int, shape: Any, stride: Any, *_: Any
) -> PickledTensor:
    return PickledTensor(storage, int(offset), tuple(map(int, shape)), tuple(map(int, stride)))


def _rebuild_parameter(data: Any, *_: Any) -> Any:
    return data


_KNOWN: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "Counter"): Counter,
    ("torch", "Size"): tuple,
    ("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _rebuild_parameter,
    ("torch.nn.parameter", "Parameter"): _rebuild_parameter,
}
