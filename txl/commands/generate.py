"""Generate text with a trained Transformer-XL, printed token by token."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from txl.checkpoint import Checkpoint, open_checkpoint
from txl.cli import build, read_flags
from txl.commands.trained import loaded, vocabulary_of
from txl.config import UsageError, require
from txl.data_utils.free_text import encode_text, read_text
from txl.data_utils.running import RunningVocab
from txl.data_utils.vocabulary import EOS, UNK, Vocab
from txl.data_utils.wikitext import tokenise
from txl.evaluation.reading import within
from txl.generation.config import GenerateConfig
from txl.generation.sampling import generate
from txl.model.settings import require_read
from txl.runtime.distributed import device_of

_LOG = logging.getLogger("txl.generate")


def main(argv: Sequence[str]) -> None:
    typed = read_flags(argv, GenerateConfig, description=__doc__ or "", first=("work_dir", "prompt", "length"))
    config = build(GenerateConfig, typed)
    checkpoint = open_checkpoint(Path(config.work_dir))
    shape = checkpoint.model_config
    require_read(typed, position=shape.position, attention=shape.attention)
    vocab = vocabulary_of(checkpoint)
    if isinstance(vocab, RunningVocab):
        return print_running_text(checkpoint, config, vocab)
    prompt = words_of(config.prompt, vocab, plain=checkpoint.record.get("data", {}).get("dataset") == "text")
    longest = config.length * (2 if config.finish_line else 1)
    given = {name: getattr(config, name) for name in ("mem_len", "clamp_len", "same_length")}
    context = within(checkpoint.context.overlaid(ext_len=0, **given), len(prompt) + longest)
    banned = [vocab.index[UNK]] if config.no_unk and UNK in vocab else []
    rule = {name: getattr(config, name) for name in ("temperature", "top_k", "top_p", "seed")}
    with loaded(checkpoint, config, device_of(config.device)) as model:
        if config.prompt is not None:
            print(" ".join(prompt).replace(f" {EOS}", "\n"), end="", flush=True)
        tokens = generate(model, vocab.encode(prompt), context, length=longest, banned=banned, **rule)
        words = (vocab.words[token] for token in tokens)
        pieces = paragraphs(words, prompt, config.length) if config.finish_line else map(as_text, words)
        for piece in pieces:
            print(piece, end="", flush=True)
    print()


def print_running_text(checkpoint: Checkpoint, config: GenerateConfig, vocab: RunningVocab) -> None:
    """Generate with a model whose tokens are not words. The prompt is continued as it is."""
    require(not config.finish_line, "--finish_line: this model's tokens are not words; leave the flag out")
    prompt = read_text("-") if config.prompt == "-" else config.prompt or ""
    ids = encode_text(prompt, vocab, name="--prompt").ids if prompt else [vocab.eos_id]
    given = {name: getattr(config, name) for name in ("mem_len", "clamp_len", "same_length")}
    context = within(checkpoint.context.overlaid(ext_len=0, **given), len(ids) + config.length)
    banned = [vocab.index[UNK]] if config.no_unk and UNK in vocab else []
    rule = {name: getattr(config, name) for name in ("temperature", "top_k", "top_p", "seed")}
    with loaded(checkpoint, config, device_of(config.device)) as model:
        print(prompt, end="", flush=True)
        for piece in vocab.pieces(generate(model, ids, context, length=config.length, banned=banned, **rule)):
            print(piece, end="", flush=True)
    print()


def as_text(word: str) -> str:
    """A word as it is printed."""
    return "\n" if word == EOS else f" {word}"


def paragraphs(words: Iterable[str], prompt: Sequence[str], length: int) -> Iterator[str]:
    """Whole paragraphs, up to the first that ends after `length` words; an unfinished one only if there is no other.

    Blank lines and headings (lines that begin with `=`) belong to the paragraph after them.
    """
    begins_with = prompt[len(prompt) - prompt[::-1].index(EOS) if EOS in prompt else 0 :][:1]
    held, is_first = "", True
    for n_word, word in enumerate(words, start=1):
        ends_paragraph = word == EOS and begins_with not in ([], ["="])
        begins_with = [] if word == EOS else begins_with or [word]
        if ends_paragraph:
            yield held
            held, is_first = "", False
            if n_word >= length:
                return
        held += as_text(word)
    if is_first:
        yield held


def words_of(prompt: str | None, vocab: Vocab, *, plain: bool) -> list[str]:
    """The prompt as words of the vocabulary; unknown ones become `<unk>`, with a warning.

    Words are separated by white space if `plain`, else tokenised as WikiText is. A line break inside is `<eos>`.
    """
    if prompt is None:
        return [EOS]
    if prompt == "-":
        prompt = read_text(prompt).rstrip("\r\n")  # a final line break, as of `echo`, is no part of it
        if not prompt.strip():
            raise UsageError("--prompt -: standard input is empty; send some text, or leave the flag out")
    words: list[str] = []
    for line in prompt.splitlines():
        words += [EOS] * bool(words) + (line.split() if plain else tokenise(line))
    unknown = [word for word in dict.fromkeys(words) if word not in vocab]
    if unknown and UNK not in vocab:
        raise UsageError(f"--prompt: {unknown[0]!r} is not in the vocabulary, which has no {UNK}; use other words")
    if unknown:
        _LOG.warning("not in the vocabulary, read as %s: %s", UNK, " ".join(unknown))
    return [word if word in vocab else UNK for word in words]
