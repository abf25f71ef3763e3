"""Small tokenizers of the kinds that pretrained models have, as folders of Hugging Face."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

TEXT = (
    "The first of 2,048 tokens isn't the last\n\n one: it's   1234567 words.\r\n\tIndented é, 東京 \U0001f600.\n"
    "A line ends <|im_end|> here, and <s> there.\n\nWe'll see what the end of the text brings to the reader.\n"
) * 6
_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
_QWEN = _LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")
SPECIAL = ["<|begin|>", "<|end|>", "<|im_start|>", "<|im_end|>"]


def _byte_level(normalizer: Any, first: Any, *, use_regex: bool) -> Any:
    """Byte-level BPE, with words as the pre-tokenizer `first` cuts them."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(ignore_merges=not use_regex))
    if normalizer:
        tokenizer.normalizer = normalizers.NFC()
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first, last])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer


def smollm() -> Any:
    from tokenizers import pre_tokenizers

    return _byte_level(None, pre_tokenizers.Digits(individual_digits=True), use_regex=True)


def _split(pattern: str) -> Any:
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def qwen() -> Any:
    return _byte_level("NFC", _split(_QWEN), use_regex=False)


def llama_3() -> Any:
    from tokenizers import processors

    tokenizer = _byte_level(None, _split(_LLAMA_3), use_regex=False)
    begin = processors.TemplateProcessing(
        single="<|begin|> $A",
        pair="<|begin|> $A <|begin|> $B",
        special_tokens=[("<|begin|>", tokenizer.token_to_id("<|begin|>"))],
    )
    byte_level = processors.ByteLevel(trim_offsets=False)
    tokenizer.post_processor = processors.Sequence([byte_level, begin])
    return tokenizer


_PIECES = ["▁", "t", "h", "e", "n", "d", "a", "▁t", "▁th", "▁the", "en", "end", "▁end", "▁▁"]
_MERGES = ["▁ t", "▁t h", "▁th e", "e n", "en d", "▁ end", "▁ ▁"]


def llama_2() -> Any:
    """BPE of a whole text as SentencePiece has it: spaces are letters, one is put before the text, and what has no
    piece is bytes. Made by hand."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

    bytes_of = [f"<0x{byte:02X}>" for byte in range(256)]
    vocab = {word: i for i, word in enumerate(["<unk>", "<s>", "</s>", *bytes_of, *_PIECES])}
    merges = [tuple(merge.split(" ")) for merge in _MERGES]
    model = models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    special = [
        AddedToken(word, special=True, normalized=False) for word in ("<unk>", "<s>", "</s>")
    ]
    tokenizer.add_special_tokens(special)
    return tokenizer


KINDS: dict[str, Callable[[], Any]] = {
    "smollm": smollm,
    "qwen": qwen,
    "llama_3": llama_3,
    "llama_2": llama_2,
}


def write_folder(folder: Path, kind: str, **settings: Any) -> Any:
    """A folder with such a tokenizer, which is returned, and settings of tokenizer_config.json."""
    tokenizer = KINDS[kind]()
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer
