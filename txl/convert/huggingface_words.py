"""Words between white space, as a tokenizer of Hugging Face's libraries that gives them the same
ids.
"""

import sys
from collections.abc import Sequence
from typing import Any

_EOS = "<eos>"
_UNK = "<unk>"
_WHITE_SPACE = "".join(filter(str.isspace, map(chr, range(sys.maxunicode + 1))))
"""As `str.split` has it; the libraries' own white space lacks the separators U+001C to U+001F."""

SETTINGS_OF_MOSES: dict[str, Any] = {"tokenizer_class": "TransfoXLTokenizer"}
"""tokenizer_config.json, besides the special tokens, for running text that is
split as Moses does.
"""
SETTINGS_OF_WORDS: dict[str, Any] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "pad_token": _EOS,
    "padding_side": "left",
    "model_input_names": ["input_ids", "attention_mask"],
    "clean_up_tokenization_spaces": False,
    "split_special_tokens": True,  # <unk>, with the comma is one word
}
"""The same for words between white space."""


def tokenizer_of_words(words: Sequence[str]) -> dict[str, Any]:
    """The content of tokenizer.json for words between white space and `<eos>` at each line end,
    which are the ids of `txl.data_utils.free_text.encode_text`. `<eos>` and `<unk>` must be among
    the words.
    """
    special = {
        "lstrip": False,
        "rstrip": False,
        "single_word": True,
        "normalized": False,
        "special": True,
    }
    index = {word: i for i, word in enumerate(words)}
    added = []
    for word, i in index.items():
        if word in (_EOS, _UNK):
            added.append({"id": i, "content": word, **special})
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {
            "type": "Replace",
            "pattern": {"Regex": "\\r\\n|\\r|\\n"},
            "content": f" {_EOS} ",
        },
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": f"[{_WHITE_SPACE}]+"},
            "behavior": "Removed",
            "invert": False,
        },
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": index, "unk_token": _UNK},
    }
