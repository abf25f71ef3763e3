"""Checkpoints that somebody has changed on purpose, or an older version has written."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from txl.checkpoint.folder import DIGESTS, write_digests

LATER = [
    *(("model", name) for name in ("memory", "compress_rate", "compression", "compress_loss")),
    *(
        ("model", name)
        for name in ("infini_update", "lookup_layer", "lookup_k", "neural_layers", "n_memory_token")
    ),
    *(("model", name) for name in ("max_span", "span_ramp", "span_loss")),
    *(("context", "lookup_len"), ("context", "compressed_len"), ("train", "memory_parts")),
]
"""Fields that came after version 0.2."""


def sign(checkpoint: Path) -> None:
    """Write the digests of a checkpoint's files as they are now."""
    files = [path for path in checkpoint.iterdir() if path.is_file() and path.name != DIGESTS]
    write_digests(
        checkpoint, {path.name: [hashlib.sha256(path.read_bytes()).hexdigest()] for path in files}
    )


def change_record(
    checkpoint: Path, change: Callable[[dict[str, Any]], object], name: str = "config.json"
) -> None:
    """Change what a JSON file of a checkpoint says, which keeps its digests if it has any."""
    record = json.loads((checkpoint / name).read_text())
    change(record)
    (checkpoint / name).write_text(json.dumps(record))
    if (checkpoint / DIGESTS).exists():
        sign(checkpoint)


def as_of_0_2(checkpoint: Path, *, digests: bool = True) -> None:
    """Make a checkpoint one of version 0.2, or of 0.1, which had no digests of tensors."""
    (checkpoint / DIGESTS).unlink()
    digest = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in checkpoint.iterdir()
    }
    texts = ("vocab.txt", "tokenizer.json")
    parts = {"attachments": {name: digest[name] for name in texts if name in digest}}
    if digests:
        parts["files"] = {name: d for name, d in digest.items() if name.endswith(".safetensors")}

    def change(record: dict[str, Any]) -> None:
        record.update(format=1, **parts)
        for section, name in LATER:
            record.get(section, {}).pop(name, None)

    change_record(checkpoint, change)
