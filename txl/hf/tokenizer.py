"""The tokenizer of transformers 4's TransfoXL: words, split as Moses does."""

import re
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizer  # pyright: ignore[reportMissingImports]

from txl.config import UsageError, require
from txl.convert import read_words
from txl.data_utils.tokens import EOS, UNK, Vocab
from txl.data_utils.wikitext import tokenise
from txl.files import write_whole

FORMULA = "<formula>"
_INSIDE_NUMBER = re.compile(r"(?<=\d)[,.](?=\d)")
_MARKED_NUMBER = re.compile(r" @([,.])@ ")


class TransfoXLTokenizer(PreTrainedTokenizer):
    """Words and their ids.

    With sacremoses (`pip install sacremoses`), which transformers 4 required, text is split as
    there: punctuation normalised, Moses' tokens with split dashes, the points and commas of numbers
    marked (`1 @.@ 5`). Without it, text is split as WikiText is, and decoded text is tokens between
    spaces.

    Args:
        vocab_file: words in the order of their ids, one a line. The other files hold the same as
            JSON or pickled; the first that is given is read. Pickles are read without running what
            they hold.
        lower_case: lower-case text first.
        language: of Moses' rules.
        never_split: words that Moses keeps whole; the special ones if not given.
    Raises:
        UsageError: if no vocabulary is given, it is damaged, or has no unknown word.
    """

    vocab_files_names = {  # noqa: RUF012
        "vocab_file": "vocab.txt",
        "vocab_json": "vocab.json",
        "pretrained_vocab_file_torch": "vocab.bin",
        "pretrained_vocab_file": "vocab.pkl",
    }
    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012
    padding_side = "left"

    def __init__(
        self,
        vocab_file: str | None = None,
        vocab_json: str | None = None,
        pretrained_vocab_file_torch: str | None = None,
        pretrained_vocab_file: str | None = None,
        lower_case: bool = False,
        language: str = "en",
        never_split: list[str] | None = None,
        unk_token: str = UNK,
        eos_token: str = EOS,
        pad_token: str = EOS,
        **others: Any,
    ) -> None:
        given = [vocab_file, vocab_json, pretrained_vocab_file_torch, pretrained_vocab_file]
        path = next((name for name in given if name), None)
        if path is None:
            raise UsageError("TransfoXLTokenizer: no vocabulary; give vocab_file, one word a line")
        self.vocab = Vocab(read_words(Path(path)))
        has_unknown = str(unk_token) in self.vocab or "<UNK>" in self.vocab
        require(
            has_unknown,
            f"{path}: has no {unk_token} for unknown words; add it, or name another with unk_token",
        )
        self.lower_case = lower_case
        if str(unk_token) in self.vocab:
            self._unknown = str(unk_token)
        else:
            self._unknown = "<UNK>"
        self._moses = _moses(language)
        if FORMULA in self.vocab and not others.get("extra_special_tokens"):
            others.setdefault("additional_special_tokens", [FORMULA])
        own = {"lower_case": lower_case, "language": language, "never_split": never_split}
        patterns = {"special_tokens_pattern": "none", "token_type_ids_pattern": "all_zeros"}
        special = {"unk_token": unk_token, "eos_token": eos_token, "pad_token": pad_token}
        super().__init__(**{**special, **own, **patterns, **others})
        if never_split is None:
            self.never_split = self.all_special_tokens
        else:
            self.never_split = never_split

    @property
    def vocab_size(self) -> int:
        """Words, without those added later."""
        return len(self.vocab)

    def get_vocab(self) -> dict[str, int]:
        """Ids by word."""
        return self.vocab.index | self.added_tokens_encoder

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        if self.lower_case:
            text = text.strip().lower()
        else:
            text = text.strip()
        if self._moses is None:
            return tokenise(text)
        normalizer, tokenizer, _ = self._moses
        words = tokenizer.tokenize(
            normalizer.normalize(text),
            aggressive_dash_splits=True,
            return_str=False,
            escape=False,
            protected_patterns=self.never_split,
        )
        parts = []
        for word in words:
            for part in _INSIDE_NUMBER.sub(r" @\g<0>@ ", word).split():
                parts.append(part)
        return parts

    def _convert_token_to_id(self, token: str) -> int:
        return self.vocab.index.get(token, self.vocab.index[self._unknown])

    def _convert_id_to_token(self, index: int) -> str:
        return self.vocab.words[index]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Running text; numbers are joined again."""
        if self._moses is None:
            text = " ".join(tokens)
        else:
            text = self._moses[2].detokenize(tokens)
        return _MARKED_NUMBER.sub(r"\1", text).strip()

    def save_vocabulary(
        self, save_directory: str, filename_prefix: str | None = None
    ) -> tuple[str]:
        """Write vocab.txt, which transformers 4 reads too."""
        name = (filename_prefix + "-" if filename_prefix else "") + self.vocab_files_names[
            "vocab_file"
        ]
        path = Path(save_directory) / name
        write_whole(path, self.vocab.to_text())
        return (str(path),)


def _moses(language: str) -> tuple[Any, Any, Any] | None:
    """Moses' normaliser, tokeniser and detokeniser; None without sacremoses."""
    try:
        import sacremoses  # pyright: ignore[reportMissingImports] (an extra)
    except ImportError:
        return None
    parts = (
        sacremoses.MosesPunctNormalizer,
        sacremoses.MosesTokenizer,
        sacremoses.MosesDetokenizer,
    )
    return tuple(part(language) for part in parts)  # type: ignore[return-value]
