"""Texts that continue prompts: words in, words out."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from txl.config import Context, require
from txl.data_utils.free_text import decoder
from txl.data_utils.tokens import UNK, Tokenizer
from txl.generation.ending import Ending, GrowingText
from txl.generation.rule import Rule
from txl.generation.sampling import Rows, beam_search, side_by_side, unread_before
from txl.inference.kept import Begun
from txl.inference.reader import context_of_text
from txl.model.transformer import TransformerXL


@dataclass(frozen=True, kw_only=True)
class TextGenerator:
    """A model with its words, and how it continues prompts, which are lists of ids. A text begins
    after the tokens that the tokenizer says, mostly the one that ends a line, as in
    `LanguageModel.score`: an empty prompt begins a line. It ends before a token with which the
    tokenizer ends texts, if it has any. With `begun` it goes on with what was read before.

    Attributes:
        is_chat: prompts are laid out by a chat template: they have what texts begin with, and the
            end of a turn ends a text too.
        tokenised: see `txl.data_utils.free_text.decoder`.
        seed: of the first prompt; the next has the next seed. None: PyTorch's global generator.
        allow_unknown: `<unk>` may be sampled.
        no_repeat_ngram_size: so many tokens in a row occur only once; see
            `txl.generation.rule.NGrams`.
        num_beams, length_penalty: above one beam, the most likely text that `beam_search` finds
        instead of a sample.
        begun: the text that all prompts go on with, which brings its own context; None: there is
            none.
    Raises:
        UsageError: if the names of tokens are to be written, which have no lines, up to the end of
            a line.
    """

    model: TransformerXL
    context: Context
    tokenizer: Tokenizer
    tokenised: bool
    ending: Ending
    rule: Rule = dataclasses.field(default_factory=Rule)
    seed: int | None = None
    allow_unknown: bool = False
    no_repeat_ngram_size: int = 0
    num_beams: int = 1
    length_penalty: float = 1.0
    begun: Begun | None = None
    is_chat: bool = False

    def __post_init__(self) -> None:
        has_lines = self.tokenised or self.tokenizer.is_of_words or self.tokenizer.names_line_ends
        wants_lines = self.ending.lines > 0 or self.ending.finish_line
        require(
            has_lines or not wants_lines,
            f"--raw: names of {self.tokenizer.unit} have no lines; leave out --lines and"
            " --finish_line",
        )

    def before(self, prompt: Sequence[int]) -> tuple[int, ...]:
        """The tokens that are read before a prompt: at least one where that is empty."""
        if self.begun is not None:
            return (self.begun.since[-1],)
        begins = self.tokenizer.begins
        if self.is_chat:
            begins = ()
        if not begins and not prompt:
            return (self.tokenizer.bos_id,)
        return begins

    def line_before(self, prompt: Sequence[int] = ()) -> str:
        """The last line of the text with a prompt, as far as it is not remembered only."""
        spell = decoder(self.tokenizer, tokenised=self.tokenised)
        begins = self.before(prompt)
        pieces = []
        for token in (*unread_before(self.begun), *begins, *prompt):
            pieces.append(spell(token))
        if self.begun is None:  # the text of what it begins with is no part of it
            del pieces[: len(begins)]
        return "".join(pieces).rpartition("\n")[2]

    @property
    def stop_ids(self) -> frozenset[int]:
        """The tokens before which a text ends."""
        named = self.tokenizer.named
        if self.is_chat and "eos_token" in named:
            return self.tokenizer.stop_ids | {named["eos_token"]}
        return self.tokenizer.stop_ids

    @property
    def banned(self) -> list[int]:
        """Ids that are never written."""
        if self.allow_unknown or UNK not in self.tokenizer:
            return []
        return [self.tokenizer.index[UNK]]

    def stream(self, prompt: Sequence[int]) -> Iterator[str]:
        """The text that continues a prompt, in pieces as soon as they are certain."""
        if self.num_beams > 1:
            yield self._most_likely(prompt)
        else:
            yield from (piece for _, piece in self._pieces([prompt], [0]))

    def text_and_ids(self, prompt: Sequence[int]) -> tuple[str, list[int]]:
        """The text that continues a prompt, without beams, and its ids, one that ended it too."""
        session = self._session([prompt], [0])
        text = "".join(piece for _, piece in session.write())
        return text, session.written[0]

    def texts(self, prompts: Sequence[Sequence[int]], *, batch_size: int) -> Iterator[str]:
        """The texts that continue several prompts, in their order, each as it would be alone with
        its seed.

        Args:
            batch_size: prompts that are continued side by side.
        Raises:
            UsageError: if that is below 1.
        """
        require(batch_size >= 1, f"batch_size {batch_size}: must be at least 1")
        if self.num_beams > 1:
            yield from map(self._most_likely, prompts)
            return
        texts = [""] * len(prompts)
        done = [False] * len(prompts)
        n_yielded = 0
        lengths = [len(self.before(prompt)) + len(prompt) for prompt in prompts]
        for group in side_by_side(lengths, batch_size=batch_size):
            for row, piece in self._pieces([prompts[index] for index in group], group):
                texts[group[row]] += piece
            for index in group:
                done[index] = True
            while n_yielded < len(done) and done[n_yielded]:
                yield texts[n_yielded]
                n_yielded += 1

    def _context_for(self, prompts: Sequence[Sequence[int]]) -> Context:
        longest = 2 * self.ending.length
        longest += max(len(self.before(prompt)) + len(prompt) for prompt in prompts)
        if self.begun is not None:
            return self.begun.context_for(longest)
        return context_of_text(self.model.config, self.context, longest)

    def _most_likely(self, prompt: Sequence[int]) -> str:
        begins = self.before(prompt)
        stop_ids = self.stop_ids

        def written(ids: Sequence[int]) -> tuple[str, bool]:
            spell = decoder(self.tokenizer, tokenised=self.tokenised)
            for token in before:
                spell(token)
            text = GrowingText(self.ending, line)
            pieces = []
            for token in ids:
                if token in stop_ids:
                    pieces.append(text.finish())
                    break
                pieces.append(text.add(spell(token)))
            return "".join(pieces), text.has_ended

        before = [*unread_before(self.begun), *begins, *prompt]
        line = self.line_before(prompt)

        def has_ended(ids: Sequence[int]) -> bool:
            if self.ending.is_by_length:  # without the text, which takes long to spell
                return ids[-1] in stop_ids
            return written(ids)[1]

        found = beam_search(
            self.model,
            [*begins, *prompt],
            self._context_for([prompt]),
            num_beams=self.num_beams,
            length=self.ending.longest,
            length_penalty=self.length_penalty,
            banned=self.banned,
            no_repeat_ngram_size=self.no_repeat_ngram_size,
            begun=self.begun,
            has_ended=has_ended,
        )
        return written(found[0].ids)[0]

    def _pieces(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int]
    ) -> Iterator[tuple[int, str]]:
        return self._session(prompts, seeds).write()

    def _session(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> "Session":
        """One that has read the prompts."""
        session = Session(dataclasses.replace(self, context=self._context_for(prompts)), seeds)
        for row, prompt in enumerate(prompts):
            session.read(row, prompt)
        return session


class Session:
    """Texts that are read and continued in turns. What was read stays in the memory.

    Args:
        seeds: one for each text, added to the seed of `how`.
    """

    def __init__(self, how: TextGenerator, seeds: Sequence[int] = (0,)) -> None:
        tokenizer = how.tokenizer
        self._how = how
        self._decoders = [decoder(tokenizer, tokenised=how.tokenised) for _ in seeds]
        for spell in self._decoders:
            for token in unread_before(how.begun):
                spell(token)
        self._lines = [how.line_before()] * len(seeds)  # the last of each text
        self._is_empty = [True] * len(seeds)
        self.written: list[list[int]] = [[] for _ in seeds]
        """The ids of each text that `write` has added last, one that ended it too."""
        self._rows = Rows(
            how.model,
            how.context,
            rule=how.rule,
            banned=how.banned,
            no_repeat_ngram_size=how.no_repeat_ngram_size,
            seeds=[None if how.seed is None else how.seed + seed for seed in seeds],
            begun=how.begun,
        )

    def read(self, row: int, prompt: Sequence[int]) -> None:
        """Add a prompt to the end of a text, which begins as `TextGenerator` says."""
        if self._is_empty[row]:
            self._is_empty[row] = False
            begins = self._how.before(prompt)
            self._rows.add(row, begins, counts=self._how.begun is None)
            for token in begins:
                self._decoders[row](token)  # its text is no part of the row's
        self._rows.add(row, prompt)
        for token in prompt:
            piece = self._decoders[row](token)
            self._lines[row] = (self._lines[row] + piece).rpartition("\n")[2]

    def write(self) -> Iterator[tuple[int, str]]:
        """Continue all texts to their ends; yields (row, piece of text).

        A session of one text may go on after that.
        """
        texts = []
        self.written = [[] for _ in self._lines]
        for line in self._lines:
            texts.append(GrowingText(self._how.ending, line))
        finished = self._rows.is_finished
        finished[:] = [False] * len(texts)
        while not all(finished):
            for row, token in enumerate(self._rows.step()):
                if token is None:
                    continue
                self.written[row].append(token)
                if token in self._how.stop_ids:
                    certain = texts[row].finish()
                else:
                    certain = texts[row].add(self._decoders[row](token))
                if certain:
                    yield row, certain
                finished[row], self._lines[row] = texts[row].has_ended, texts[row].line
