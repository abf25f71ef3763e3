"""The library of Hugging Face tokenizers. A tokenizer.json may hold patterns that take for ever and rules that multiply
text: unless it is of the plain kind that is trained here, it works in a process of its own."""

import functools
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..apart import Apart
from ..raw_text import DataError

_MOST_TOKENS = 2**24
_TOKENS_PER_BYTE = 32
_BYTES_PER_TOKEN = 2**16
_SECONDS = 20
"""Of processor time for a call and for each megabyte of text; a slow tokenizer takes one for a megabyte."""


class Piece(NamedTuple):
    """The ids of a piece of text, and the characters before the end of each token if these are asked for."""

    ids: np.ndarray
    ends: np.ndarray | None


def library() -> Any:
    """The module. Raises `DataError` if it is not installed."""
    try:
        import tokenizers
    except ImportError:
        raise DataError("--dataset bpe: needs Hugging Face tokenizers: pip install tokenizers") from None
    return tokenizers


class Encoder:
    """A tokenizer.json in this process. Raises `ValueError` if it is none, or its ids are too large."""

    def __init__(self, content: str) -> None:
        try:
            self._tokenizer = library().Tokenizer.from_str(content)
        except DataError:
            raise
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"no tokenizer.json that tokenizers can read ({error})") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True  # <eos> as written in a text is text

    def names(self) -> list[str]:
        """The tokens, by id."""
        ids = self._tokenizer.get_vocab(with_added_tokens=True).values()
        n_token = 1 + max(ids, default=-1)
        if n_token > min(_MOST_TOKENS, 2 * len(ids) + 2**16):
            raise ValueError(f"its {len(ids)} tokens have ids up to {n_token - 1}")
        names = [self._tokenizer.id_to_token(i) for i in range(n_token)]
        return [f"<no token {i}>" if name is None else name for i, name in enumerate(names)]

    def special(self) -> list[str]:
        """How the special tokens are written."""
        return [token.content for token in self._tokenizer.get_added_tokens_decoder().values() if token.special]

    def encode(self, pieces: Sequence[str], with_ends: bool) -> list[Piece]:
        """The tokens of each piece. Raises `ValueError` if they are many times as long as the text."""
        encode = self._tokenizer.encode_batch if with_ends else self._tokenizer.encode_batch_fast
        found = encode(list(pieces), add_special_tokens=False)
        n_byte, n_token = sum(len(piece.encode()) for piece in pieces), sum(len(one.ids) for one in found)
        if n_token > _TOKENS_PER_BYTE * (n_byte + 32):
            raise ValueError(f"makes {n_token} tokens of {n_byte} bytes")
        return [
            Piece(
                np.array(one.ids, dtype=np.uint32),
                np.array([end for _, end in one.offsets], dtype=np.int64) if with_ends else None,
            )
            for one in found
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids. Raises `ValueError` if it is many times as long."""
        text = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        if len(text) > _BYTES_PER_TOKEN * (len(ids) + 1):
            raise ValueError(f"makes {len(text)} characters of {len(ids)} tokens")
        return text


class EncoderApart(Encoder):
    """The same in a process of its own."""

    def __init__(self, content: str) -> None:
        library()
        self._apart = Apart(functools.partial(Encoder, content), "tokenizer.json")

    def names(self) -> list[str]:
        return self._apart.call("names", seconds=_SECONDS)

    def special(self) -> list[str]:
        return self._apart.call("special", seconds=_SECONDS)

    def encode(self, pieces: Sequence[str], with_ends: bool) -> list[Piece]:
        seconds = _SECONDS * (1 + sum(map(len, pieces)) // 10**6)
        return self._called("encode", list(pieces), with_ends, seconds=seconds)

    def decode(self, ids: Sequence[int]) -> str:
        return self._called("decode", list(ids), seconds=_SECONDS)

    def _called(self, method: str, *args: Any, seconds: int) -> Any:
        try:
            return self._apart.call(method, *args, seconds=seconds)
        except DataError:
            raise
        except ValueError as error:
            raise DataError(f"tokenizer.json: {error}; give another, or another text") from None


def encoder_of(content: str) -> Encoder:
    """What encodes by a tokenizer.json. Raises `ValueError` if it is none."""
    return Encoder(content) if _is_plain(content) else EncoderApart(content)


def _is_plain(content: str) -> bool:
    """True for a byte-level BPE without rules of its own, as it is trained here."""
    try:
        parts = json.loads(content)
        pre, decoder, model = (parts[name] for name in ("pre_tokenizer", "decoder", "model"))
        rules = parts.get("normalizer"), parts.get("post_processor"), model.get("unk_token")
        affixes = model.get("continuing_subword_prefix"), model.get("end_of_word_suffix")
        n_token = len(model["vocab"]) + len(parts.get("added_tokens", ()))
        ids = [*model["vocab"].values(), *(token["id"] for token in parts.get("added_tokens", ()))]
        return (
            (pre["type"], decoder["type"], model["type"]) == ("ByteLevel", "ByteLevel", "BPE")
            and not any(rules)
            and not any(affixes)
            and all(isinstance(i, int) and i < 2 * n_token for i in ids)
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False
