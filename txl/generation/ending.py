"""Where a generated text ends, and how much of it is certain before that."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from txl.config import require


@dataclass(frozen=True, kw_only=True)
class Ending:
    """When a text ends: as soon as one of these is reached.

    Attributes:
        length: tokens; with `finish_line` up to twice as many, see there.
        lines: lines that are not blank, the one that the prompt begins included; 0: any number.
        stop: strings before which the text is cut.
        finish_line: end with a whole paragraph, the first that ends after `length` tokens. Blank
            lines and headings (lines that begin with `=`) belong to the paragraph after them. An
            unfinished paragraph is left out, unless there is no other.
    """

    length: int
    lines: int = 0
    stop: Sequence[str] = ()
    finish_line: bool = False

    def __post_init__(self) -> None:
        require(self.length >= 1, f"--length {self.length}: must be at least 1")
        require(self.lines >= 0, f"--lines {self.lines}: must be at least 0")
        require(all(self.stop), "--stop: an empty string is in every text; give others, or none")

    @property
    def longest(self) -> int:
        """Tokens after which every text has ended."""
        return (1 + self.finish_line) * self.length

    @property
    def is_by_length(self) -> bool:
        """True if only the number of tokens counts."""
        return not (self.lines or self.stop or self.finish_line)


class GrowingText:
    """A text that grows to its end.

    Args:
        line: the last line of the prompt.
    """

    def __init__(self, ending: Ending, line: str = "") -> None:
        self._ending = ending
        self.line = line
        self._n_token = self._n_line = self._n_paragraph = 0
        self._unfinished = ""  # paragraph
        self._stops = _Stops(ending.stop)
        self.has_ended = False

    def add(self, piece: str) -> str:
        """The text that a token makes certain, of which lines may end anywhere."""
        self._n_token += 1
        lines = re.findall(r".*\n|.+", piece) or [""]
        certain = ""
        for i, line in enumerate(lines, start=1):
            certain += self._add(line, is_last=i == len(lines))
            if self.has_ended:
                break
        return certain

    def finish(self) -> str:
        """The rest, where the model ends the text."""
        return self._end(self._unfinished)

    def _add(self, piece: str, *, is_last: bool) -> str:
        """The same of a part of a token, in which a line ends with it or after it."""
        ending = self._ending
        n_token = self._n_token if is_last else self._n_token - 1
        self.line += piece
        ends_line = piece.endswith("\n") and bool(self.line.strip())
        ends_paragraph = ends_line and not self.line.lstrip().startswith("=")
        self.line = self.line.rpartition("\n")[2]
        self._n_line += ends_line
        self._n_paragraph += ends_paragraph
        self._unfinished += piece
        if ends_line and self._n_line == ending.lines:
            return self._end(self._unfinished.rstrip("\n"))
        if not ending.finish_line:
            certain = self._unfinished
            self._unfinished = ""
            if n_token >= ending.length:
                return self._end(certain)
            return self._past_stops(certain)
        if ends_paragraph:
            certain = self._unfinished[:-1]
            self._unfinished = "\n"
            if n_token >= ending.length:
                return self._end(certain)
            return self._past_stops(certain)
        if n_token >= ending.longest:
            return self._end("" if self._n_paragraph else self._unfinished)
        return ""

    def _end(self, text: str) -> str:
        self.has_ended = True
        return self._stops.add(text) + self._stops.held

    def _past_stops(self, text: str) -> str:
        certain = self._stops.add(text)
        self.has_ended = self._stops.found
        return certain


class _Stops:
    """Cuts a text before the first of some strings.

    Text that may be the beginning of one is held.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = strings
        self.held = ""
        self.found = False

    def add(self, piece: str) -> str:
        text = self.held + piece
        places = [place for stop in self._strings if (place := text.find(stop)) >= 0]
        begun = []
        for stop in self._strings:
            for n in range(1, len(stop)):
                if text.endswith(stop[:n]):
                    begun.append(n)
        self.found = bool(places)
        if places:
            end = min(places)
            self.held = ""
        else:
            end = len(text) - max(begun, default=0)
            self.held = text[end:]
        return text[:end]
