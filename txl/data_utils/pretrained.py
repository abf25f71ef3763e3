"""The tokenizer of a pretrained model: of a folder of Hugging Face, with its special tokens."""

import itertools
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from txl.files import typed_content

from .config import DataSet
from .documents import Document, documents_in
from .errors import DataError, reading, text_of
from .formats import has_rows
from .subwords import Subwords, joined, tokenizer_content
from .texts import AnyFiles, Texts
from .tokens import Tokens, escaped

_LOG = logging.getLogger(__name__)
_TOKENIZER = "tokenizer.json"
_CONFIG = "tokenizer_config.json"
_OURS = "txl"
"""A field of tokenizer_config.json, for what transformers keeps in other files."""


@dataclass(frozen=True, kw_only=True)
class Special:
    """What a model's folder says of its special tokens.

    Attributes:
        n_token: rows of the model's table; those after the last token have no name.
        bos_id: what begins a text; None: nothing is named so.
        eos_id: what ends a text, or a turn of a chat; None: nothing is named so.
        stop_ids: what ends a generated text.
        chat_template: Jinja2 that lays out a chat.
        sampling: see `sampling_in`.
    """

    n_token: int
    bos_id: int | None = None
    eos_id: int | None = None
    stop_ids: tuple[int, ...] = ()
    chat_template: str | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)


class Pretrained(Subwords):
    """The tokens of a tokenizer.json as transformers reads it: special tokens are recognised in a
    text, white space and line ends stay, nothing is added or cut. Raises `ValueError` if `content`
    is no tokenizer.json, or has more tokens than the model.
    """

    keeps_line_ends = True
    encodes_in_one = True
    recognises_special = True

    def __init__(self, content: str, special: Special) -> None:
        super().__init__(content)
        n_token = len(self.words)
        if n_token > special.n_token:
            raise ValueError(f"has {n_token} tokens, and the model {special.n_token}")
        for i in range(n_token, special.n_token):
            self.index[f"<no token {i}>"] = i
            self.words.append(f"<no token {i}>")
        if len(self.index) != len(self.words):
            raise ValueError("a token is in the vocabulary twice")
        named = {special.bos_id, special.eos_id, *special.stop_ids} - {None}
        if not all(0 <= i < special.n_token for i in named):
            raise ValueError("a special token is none of the vocabulary")
        self.special = special
        self.end_id = None
        self._begins = self._prefix()

    @classmethod
    def of_folder(cls, folder: Path, n_token: int) -> "Pretrained":
        """The tokenizer in a folder of Hugging Face. Raises `DataError` if there is none, or it is
        damaged.

        Args:
            n_token: rows of the model's table.
        """
        path = folder / _TOKENIZER
        if not path.is_file():
            what = "has no tokenizer.json, with which the model's text is read"
            raise DataError(f"{folder}: {what}; bring one, or have transformers write it")
        with reading(path):
            content = tokenizer_content(path)
        try:
            text = content.decode()
            parts = json.loads(text)
            if _drop_without_rows(parts, n_token, path):
                text = json.dumps(parts)
            return cls(text, _special_in(folder, _ids_of(parts), n_token))
        except DataError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            why = (str(error).splitlines() or [type(error).__name__])[0]
            raise DataError(
                f"{path}: no tokenizer of the model ({why}); use another copy"
            ) from None

    @classmethod
    def from_files(cls, read: Callable[[str], str]) -> Self:
        content = read(_TOKENIZER)
        try:
            own = json.loads(read(_CONFIG))[_OURS]
            stop_ids = tuple(map(int, own.pop("stop_ids")))
            return cls(content, Special(**own, stop_ids=stop_ids))
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{_CONFIG}: {error!r}") from None

    def files(self) -> dict[str, str]:
        """Those that transformers reads, and the names of the tokens."""
        special = self.special
        config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
        for name, i in self.named.items():
            config[name] = self.words[i]
        if special.chat_template is not None:
            config["chat_template"] = special.chat_template
        config["clean_up_tokenization_spaces"] = False
        config[_OURS] = {**vars(special), "stop_ids": list(special.stop_ids)}
        return {
            "vocab.txt": escaped(self.words),
            _TOKENIZER: self.content,
            _CONFIG: json.dumps(config, indent=1),
        }

    @property
    def eos_id(self) -> int:
        """What ends a text, else the first token."""
        if self.special.eos_id is not None:
            return self.special.eos_id
        return next(iter(self.special.stop_ids), 0)

    @property
    def bos_id(self) -> int:
        if self.special.bos_id is not None:
            return self.special.bos_id
        return self.eos_id

    @property
    def named(self) -> dict[str, int]:
        ids = {"bos_token": self.special.bos_id, "eos_token": self.special.eos_id}
        return {name: i for name, i in ids.items() if i is not None}

    @property
    def begins(self) -> tuple[int, ...]:
        """What the tokenizer's post-processor puts before a text; most of them nothing."""
        return self._begins

    @property
    def stop_ids(self) -> frozenset[int]:
        return frozenset(self.special.stop_ids)

    @property
    def chat_template(self) -> str | None:
        return self.special.chat_template

    @property
    def sampling(self) -> Mapping[str, float]:
        return self.special.sampling

    def _prefix(self) -> tuple[int, ...]:
        """The tokens that the post-processor puts before a text."""
        encoding = self._library.encode("a", add_special_tokens=True)
        n_added = (*encoding.special_tokens_mask, 0).index(0)
        return tuple(encoding.ids[:n_added])

    def special_in(self, text: str) -> dict[str, int]:
        """None is read as text."""
        return {}

    def without_special(self, text: str) -> str:
        return self._special.sub("", text) if self._special else text

    def text_of(self, ids: Sequence[int]) -> str:
        return self._spelled(ids)

    def decoded(self, ids: Iterable[int]) -> str:
        """As the library decodes them, half a character at the end too."""
        return self._spelled(list(ids))

    def encode(self, text: str) -> Tokens:
        return joined(InOnePiece(self.encode_window).add(text, is_last=True))

    def encode_window(self, text: str) -> Tokens:
        """The tokens of a text of about a megabyte at most."""
        (one,) = self._tokens([text], with_ends=True)
        return one

    def encode_documents(
        self, documents: Iterable[Document]
    ) -> Iterator[tuple[list[Document], list[Tokens]]]:
        for in_parts, group in itertools.groupby(documents, _in_parts()):
            if in_parts:
                yield from self._encode_parts(group)
            else:
                yield from super().encode_documents(group)

    def _encode_parts(
        self, documents: Iterable[Document]
    ) -> Iterator[tuple[list[Document], list[Tokens]]]:
        """Parts of documents, cut elsewhere: where tokens end."""
        piece = InOnePiece(self.encode_window)
        begins_file = False
        for document in documents:
            begins_file = begins_file or document.begins_file
            found = piece.add(text_of(document.text), is_last=document.ends)
            for i, (text, one) in enumerate(found, 1):
                part = Document(text.encode(), False, document.split, None, begins_file)
                if i == len(found):
                    part = part._replace(ends=document.ends, place=document.place)
                yield [part], [one]
                begins_file = False


def _in_parts() -> Callable[[Document], bool]:
    """What tells of each of the next documents whether it is a part of one."""
    is_open = False

    def in_parts(document: Document) -> bool:
        nonlocal is_open
        is_part = is_open or not document.ends
        is_open = not document.ends
        return is_part

    return in_parts


def as_pretrained(subwords: Subwords) -> Pretrained:
    """The same tokens as transformers reads them. A text begins after the token that ends a document
    or a line here, and there the post-processor puts it before a text. Only the first of the two
    ends a text there."""
    name = subwords.words[subwords.eos_id]
    begin = {"SpecialToken": {"id": name, "type_id": 0}}
    first = {"Sequence": {"id": "A", "type_id": 0}}
    second = {"Sequence": {"id": "B", "type_id": 1}}
    content = json.loads(subwords.content)
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [begin, first],
        "pair": [begin, first, second],
        "special_tokens": {name: {"id": name, "ids": [subwords.eos_id], "tokens": [name]}},
    }
    special = Special(n_token=len(subwords), bos_id=subwords.end_id, eos_id=subwords.end_id)
    return Pretrained(json.dumps(content), special)


_WINDOW = 1 << 20
"""Characters that are encoded at a time."""
_OVERLAP = 1 << 12
"""Characters that two windows share. What stands so far away has no say in how a text is cut into
tokens."""
_AGREEING = 16
"""Tokens before the border of two windows that must be the same in both."""


class InOnePiece:
    """Encodes texts that come in parts, each as if it came in one piece.

    A text of more than `_WINDOW` characters is encoded in windows that overlap. They are joined at
    the end of a token of both, before which their tokens agree.

    Args:
        encode: gives the tokens of a text, with their ends.
    """

    def __init__(self, encode: Callable[[str], Tokens]) -> None:
        self._encode = encode
        self._text = ""
        self._n_done = 0
        self._before = np.zeros(0, dtype=np.uint32)  # the last tokens up to there

    def add(self, text: str, *, is_last: bool) -> list[tuple[str, Tokens]]:
        """What is certain when a text goes on with this, all if it ends with it: parts of the text,
        and the tokens of each."""
        self._text += text
        parts = []
        while len(self._text) - self._n_done > _WINDOW + _OVERLAP:
            parts.append(self._taken(self._text[: self._n_done + _WINDOW + _OVERLAP], _OVERLAP))
        if is_last:
            if self._text:
                parts.append(self._taken(self._text, 0))
            self._text = ""
            self._n_done = 0
            self._before = self._before[:0]
        return parts

    def _taken(self, window: str, n_left: int) -> tuple[str, Tokens]:
        """The new part of a window up to the last token that ends before its last `n_left`
        characters."""
        begin = self._n_done
        tokens = self._encode(window)
        ends = np.maximum.accumulate(tokens.ends)
        is_new = ends > begin
        if begin:
            before = tokens.ids[~is_new][-len(self._before) :]
            if begin not in ends or not np.array_equal(before, self._before):
                raise DataError(
                    "tokenizer.json: a text of more than a megabyte cannot be encoded in parts, as"
                    " tokens depend on what stands far from them; give it in shorter files"
                )
        end = len(window)
        if n_left:
            end = _border(window, ends[is_new & (ends <= len(window) - n_left)])
        is_taken = is_new & (ends <= end)
        ids = tokens.ids[is_taken]
        n_dropped = max(0, end - _OVERLAP)
        self._text = self._text[n_dropped:]
        self._n_done = end - n_dropped
        self._before = np.concatenate([self._before, ids])[-_AGREEING:]
        return window[begin:end], Tokens(ids, ends[is_taken] - begin)


def _border(window: str, ends: np.ndarray) -> int:
    """The last of these ends of tokens behind which there is white space, else the last: words are
    counted whole."""
    if not len(ends):
        raise DataError("tokenizer.json: a token is longer than a megabyte; give another text")
    for end in ends[:-_OVERLAP:-1].tolist():
        if window[end].isspace():
            return end
    return int(ends[-1])


def _drop_without_rows(parts: dict[str, Any], n_token: int, path: Path) -> bool:
    """Take out of a tokenizer.json the tokens that were added to it, and not to the model of
    `n_token`; a notice names them. Returns whether there were any."""
    added = parts.get("added_tokens") or []
    beyond = [token for token in added if token["id"] >= n_token]
    if not beyond:
        return False
    names = ", ".join(token["content"] for token in beyond)
    _LOG.warning("%s: added to the tokenizer, not to the model: %s", path, names)
    parts["added_tokens"] = [token for token in added if token not in beyond]
    return True


def _ids_of(parts: dict[str, Any]) -> dict[str, int]:
    """The ids of the tokens of a tokenizer.json. Raises `ValueError`, `TypeError` or `KeyError` if
    it is damaged."""
    of_model = parts["model"]["vocab"]
    ids = {}
    if isinstance(of_model, dict):
        ids = dict(of_model)
    for token in parts.get("added_tokens") or ():
        ids[token["content"]] = token["id"]
    return ids


def _special_in(folder: Path, ids: dict[str, int], n_token: int) -> Special:
    """What the files of a folder say of special tokens. Raises `DataError` if one is damaged."""
    of_tokenizer = _read(folder / _CONFIG)
    of_model = _read(folder / "config.json")
    of_generation = _read(folder / "generation_config.json")
    bos_id = _id_named(of_tokenizer.get("bos_token"), ids)
    if bos_id is None and "bos_token" not in of_tokenizer:
        bos_id = next(iter(_as_ids(of_model.get("bos_token_id"))), None)
    eos_id = _id_named(of_tokenizer.get("eos_token"), ids)
    stop_ids: list[int] = []
    for settings in (of_generation, of_model):
        stop_ids = stop_ids or _as_ids(settings.get("eos_token_id"))
    if eos_id is None:
        eos_id = next(iter(stop_ids), None)
    elif not stop_ids:
        stop_ids = [eos_id]
    return Special(
        n_token=n_token,
        bos_id=bos_id,
        eos_id=eos_id,
        stop_ids=tuple(stop_ids),
        chat_template=_chat_template(folder, of_tokenizer),
    )


_SAMPLING = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
)


def sampling_in(folder: Path) -> dict[str, Any]:
    """How a model's own generation_config.json samples texts, by the fields of
    `txl.generation.rule.Rule`; empty if it does not. Raises `DataError` if it is damaged."""
    path = folder / "generation_config.json"
    settings = _read(path)
    if settings.get("do_sample") is not True:
        return {}
    sampling: dict[str, Any] = {}
    for name in _SAMPLING:
        value = settings.get(name)
        if value is None:
            continue
        kinds: tuple[type, ...] = (int, float)
        if name == "top_k":
            kinds = (int,)
        if type(value) not in kinds:
            raise DataError(f"{path}: {name} is {str(value)[:40]!r}, and no number; correct it")
        sampling[name] = value
    return sampling


def _read(path: Path) -> dict[str, Any]:
    """The object in a file of JSON; empty if there is no file."""
    if not path.is_file():
        return {}
    with reading(path):
        try:
            content = json.loads(typed_content(path).decode())
        except (ValueError, RecursionError):
            content = None
    if not isinstance(content, dict):
        raise DataError(f"{path}: no object of JSON; use another copy")
    return content


def _id_named(token: Any, ids: dict[str, int]) -> int | None:
    """The id of a token of tokenizer_config.json, a name or an object with one."""
    if isinstance(token, dict):
        token = token.get("content")
    if isinstance(token, str):
        return ids.get(token)
    return None


def _as_ids(value: Any) -> list[int]:
    """The ids of a field that may hold one, several or none."""
    if not isinstance(value, list):
        value = [value]
    return [i for i in value if type(i) is int]


def _chat_template(folder: Path, of_tokenizer: dict[str, Any]) -> str | None:
    """The template in a file of its own, else the one in tokenizer_config.json; of several the one
    named default."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        with reading(path):
            return typed_content(path).decode()
    template = of_tokenizer.get("chat_template")
    if isinstance(template, list):
        named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
        template = named.get("default")
    if isinstance(template, str):
        return template
    return None


class AsItStands(AnyFiles):
    """Any files, as they are. A file is a document, unless it has rows, or valid and test are to be
    split off it, or --documents says otherwise. No line end is added at the end of a file; rows
    have one each."""

    def defines_vocabulary(self, counted: Sequence[str]) -> bool:
        """The model does."""
        return False

    def auto_rule(self, files: list[Path]) -> tuple[str, str]:
        rule, why = super().auto_rule(files)
        if self.dealt or any(map(has_rows, files)):
            return rule, why
        return "file", "a file is read in one piece"

    def documents_in(self, path: Path) -> Iterator[Document]:
        return documents_in(path, self.rule, self.config.text_field, adds_line_end=False)


def _given(texts: Texts) -> Pretrained:
    """The tokenizer in the folder of the file that --tokenizer names."""
    if texts.config.tokenizer is None:
        raise DataError(
            "--dataset pretrained: reads text in the tokens of a model; name its tokenizer.json with"
            " --tokenizer"
        )
    path = Path(texts.config.tokenizer)
    if path.name != _TOKENIZER:
        raise DataError(f"--tokenizer {path}: name the tokenizer.json in the folder of a model")
    n_token = _read(path.with_name("config.json")).get("vocab_size")
    if type(n_token) is not int:
        n_token = len(Subwords.read(path))
    return Pretrained.of_folder(path.parent, n_token)


PRETRAINED = DataSet(AsItStands, Pretrained, known=_given)
