"""Texts that a trained model writes, printed token by token."""

import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

import torch

from txl.config import UsageError, build, require
from txl.data_utils.free_text import decoder, encode_text, read_text, read_turns
from txl.data_utils.tokens import Tokenizer
from txl.generation.config import LONGEST_SESSION, GenerateConfig
from txl.generation.rule import Rule
from txl.inference.reader import reading_context
from txl.language.chat import Chat
from txl.language.text_generation import Session, TextGenerator
from txl.runs.models import begun_in, open_one_model
from txl.runtime.resources import require_room
from txl.settings.layers import Asked

_A_TEXT = 2**10
"""Bytes of a text that is generated, with its tokens and its place: no text takes less."""


def write_texts(asked: Asked) -> None:
    """Print what a trained model writes.

    Args:
        asked: settings of `GENERATE` by name.
    Raises:
        UsageError: if settings do not go together, or the model or a file cannot be read.
    """
    config = build(GenerateConfig, asked)
    config.refuse_with_beams(name for name in ("seed", "batch_size") if name in asked)
    lm = open_one_model(config, asked)
    begun = begun_in(lm, config.memory_file)
    vocab = lm.tokenizer
    tokenised = lm.is_tokenised
    prompts = []
    for name, text in prompts_of(config, vocab):
        prompts.append((text, ids_of(text, name, vocab, tokenised=tokenised)))
    context = lm.context.as_asked(config)
    if begun is not None:
        context = begun.context_for(LONGEST_SESSION)
    rule: Rule = config
    if config.num_beams == 1:
        rule = lm.sampling_rule({f.name: asked[f.name] for f in fields(Rule) if f.name in asked})
    with lm.used_as(config) as model:
        generator = TextGenerator(
            model=model,
            context=context,
            tokenizer=vocab,
            tokenised=tokenised and not config.raw,
            ending=config.ending(),
            rule=rule,
            seed=config.seed,
            allow_unknown=config.allow_unk,
            no_repeat_ngram_size=config.no_repeat_ngram_size,
            num_beams=config.num_beams,
            length_penalty=config.length_penalty,
            begun=begun,
        )
        if config.interactive:
            take_turns(generator, config, *prompts[0], tokenised=tokenised)
            return
        shown = []
        for text, ids in prompts:
            shown.append("".join(map(decoder(vocab, tokenised=False), ids)) if config.raw else text)
        n_text = len(prompts) * config.num_samples
        if n_text == 1:
            say(shown[0], generator.stream(prompts[0][1]))
            return
        require_room(n_text * _A_TEXT, torch.device("cpu"), f"--num_samples {config.num_samples}")
        rows = []
        for text, (_, ids) in zip(shown, prompts, strict=True):
            for _ in range(config.num_samples):
                rows.append((text, ids))
        written = generator.texts([ids for _, ids in rows], batch_size=config.batch_size)
        for number, ((text, _), continuation) in enumerate(zip(rows, written, strict=True)):
            if number:
                print("---")
            say(text, [continuation])


def prompts_of(config: GenerateConfig, vocab: Tokenizer) -> Iterator[tuple[str, str]]:
    """Where each prompt comes from, for messages, and its text; empty: begin a line. A line break
    that ends a file or standard input, as of `echo`, is no part of it.
    """
    name = config.prompts or config.prompt_file or ("-" if config.prompt == "-" else None)
    if name is None:
        text = vocab.prompt(config.prompt or "")
        require(
            bool(text) or config.prompt is None,
            "--prompt is empty: give some text, or leave the flag out to start a new line",
        )
        yield "--prompt", text
        return
    text = read_text(name, vocab)
    if not vocab.prompt(text):
        flag = next(
            flag for flag in ("prompts", "prompt_file", "prompt") if getattr(config, flag) == name
        )
        if name == "-":
            what = "standard input"
        else:
            what = "the file"
        raise UsageError(f"--{flag} {name}: {what} is empty; give some text, or leave the flag out")
    if config.prompts is None:
        yield name, vocab.prompt(text.removesuffix("\n").removesuffix("\r"))
    else:
        for number, line in enumerate(io.StringIO(text, newline=None), start=1):
            yield f"{name}, line {number}", vocab.prompt(line.removesuffix("\n"))


def ids_of(text: str, name: str, vocab: Tokenizer, *, tokenised: bool) -> list[int]:
    """The tokens of a prompt; none if it is blank. Unknown words become `<unk>`, with a warning."""
    if vocab.prompt(text):
        return encode_text(text, vocab, name=name, running=tokenised).ids
    return []


def say(prompt: str, pieces: Iterator[str] | Sequence[str]) -> None:
    """Print a prompt and what continues it."""
    print(prompt, end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()


def take_turns(
    how: TextGenerator, config: GenerateConfig, prompt: str, ids: Sequence[int], *, tokenised: bool
) -> None:
    """Answer messages, if the tokenizer has a chat template, else continue lines. Raises
    `UsageError` if --system cannot be said.
    """
    if how.begun is None:  # turns are one text, read as one that is written at once
        how = replace(how, context=reading_context(how.model.config, how.context))
    has_template = how.tokenizer.chat_template is not None
    require(
        has_template or config.system is None,
        "--system: the model's tokenizer has no chat template; give it as --prompt",
    )
    arguments = config.template_arguments()
    if has_template and not config.no_chat:
        chat(Chat(how, config.system or "", arguments), prompt)
    else:
        require(not arguments, "--chat_template_args: no chat template is used; leave it out")
        require(config.system is None, "--system: is said in a chat only; leave --no_chat out")
        converse(how, prompt, ids, tokenised=tokenised)


def chat(talk: Chat, first: str) -> None:
    """Answer a first message, if there is one, then each line of standard input; after an empty
    line an answer that was cut by --length goes on.
    """
    turns = read_turns()
    is_typed = sys.stdin is not None and sys.stdin.isatty()
    if first:
        say(f"{first}\n", talk.answer(first))
    while True:
        print("> " if is_typed else "", end="", flush=True)
        text = next(turns, None)
        if text is None:
            return
        if text:
            say("", talk.answer(text))
        else:
            say("", talk.go_on())


def converse(how: TextGenerator, prompt: str, ids: Sequence[int], *, tokenised: bool) -> None:
    """Continue a prompt, then each line of standard input; an empty line goes on with the text as
    it is.
    """
    session = Session(how)
    turns = read_turns()
    is_typed = sys.stdin is not None and sys.stdin.isatty()
    if ids:
        session.read(0, ids)
        say(prompt, (piece for _, piece in session.write()))
    while True:
        print("> " if is_typed else "", end="", flush=True)
        text = next(turns, None)
        if text is None:
            return
        session.read(0, ids_of(text, "standard input", how.tokenizer, tokenised=tokenised))
        say("", (piece for _, piece in session.write()))
