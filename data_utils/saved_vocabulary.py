"""The vocabulary of a text, kept beside its token files."""

import json
import logging
from pathlib import Path
from typing import Any

from txl.files import written_whole

from .vocabulary import Vocab

_LOG = logging.getLogger(__name__)


def read_saved(path: Path, fingerprint: dict[str, Any], kind: type[Vocab]) -> Vocab | None:
    """The vocabulary in a file; None if it is missing, or, with a warning, made from something else or damaged."""
    if not path.is_file():
        return None
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        if saved["fingerprint"] == fingerprint:
            vocab = kind(saved["words"])
            if vocab.fingerprint() == saved["checksum"]:
                return vocab
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    _LOG.warning("%s: stale or damaged, rewritten", path)
    return None


def write_saved(path: Path, fingerprint: dict[str, Any], vocab: Vocab, words: object) -> None:
    """Write a vocabulary that `read_saved` makes again from `words`."""
    content = {"fingerprint": fingerprint, "checksum": vocab.fingerprint(), "words": words}
    with written_whole(path) as temporary:
        temporary.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
