"""Weights and optimizer state in one file a rank, through torch.distributed.checkpoint.

The files are safetensors, whose headers say which rows of a tensor they hold: nothing in them is
unpickled, and a checkpoint in one file is read the same way. The library is imported where shards
are: it takes half a second.
"""

import math
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from txl.checkpoint.folder import damaged
from txl.files import errors_naming, require_readable
from txl.runtime.distributed import Ranks, lost_contact_errors

SHARDS = "shard-*.safetensors"


def shards_in(folder: Path) -> list[Path]:
    """The files of the ranks in a checkpoint; none if its tensors are in one file."""
    return sorted(folder.glob(SHARDS))


def write_shards(tensors: Mapping[str, Tensor], folder: Path, ranks: Ranks) -> list[Path]:
    """Write this rank's rows; returns its files. All ranks call it together."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    with lost_contact_errors(ranks.rank), errors_naming(folder):
        try:
            writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
            save(dict(tensors), storage_writer=writer, process_group=ranks.control)
        except CheckpointException as error:  # no Exception, and a traceback of every rank long
            raise next(iter(error.failures.values()))[0] from None
    return sorted(folder.glob(f"shard-{ranks.rank + 1:05d}-*"))


def read_into(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Read tensors, whole ones and shards, from all files of a checkpoint.

    Raises `UsageError` if one is damaged.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    try:
        _require_files(folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this process reads alone, as it should
            load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
    except (CheckpointException, OSError, SafetensorError, RuntimeError, ValueError, KeyError):
        raise damaged(folder / SHARDS) from None


def tensors_in(folder: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shape and dtype of the tensors in all files of a checkpoint, without reading them. Raises
    `UsageError` if a file is damaged, or rows of a tensor are missing.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    try:
        _require_files(folder)
        metadata = HuggingFaceStorageReader(str(folder)).read_metadata()
    except (OSError, SafetensorError, ValueError, KeyError, IndexError, TypeError):
        raise damaged(folder / SHARDS) from None
    found = {}
    for name, stored in metadata.state_dict_metadata.items():
        assert isinstance(stored, TensorStorageMetadata)  # the reader knows no others
        if name.startswith(("memory.", "rng.")):  # of the streams, once in each of their files
            continue
        if sum(math.prod(chunk.sizes) for chunk in stored.chunks) != math.prod(stored.size):
            raise damaged(folder / SHARDS, f"rows of {name} are missing")
        found[name] = (stored.size, stored.properties.dtype)
    return found


def _require_files(folder: Path) -> None:
    """Raise `OSError` if one of the files of tensors, all of which are opened, cannot be read, or
    is a pipe.
    """
    for path in folder.glob("*.safetensors"):
        require_readable(path)
