"""Write the tables and numbers of Markdown pages from files of results: what stands between the
markers of a page becomes what the files give. lab/docs/studies.md describes the markers.

python -m lab.studies.fill PAGE.md ...
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from lab.studies.figures import Figures
from lab.studies.page_numbers import Place, evaluated, placed, sources_in
from lab.studies.page_tables import table_of
from lab.studies.tables import as_markdown
from txl.config import Checked, UsageError, build, option, require
from txl.files import content_of, write_whole
from txl.programs.run import run
from txl.runtime.log import print_line
from txl.settings.flags import read_flags, require_utf8

_TABLE = "<!-- table:"
_NUMBERS = "<!-- numbers:"
_END = "<!-- end -->"
STRICT = "<!-- every number has a source -->"
"""From here on a page has no number with a decimal point but from a file or with a named source."""
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_NO_PROSE = re.compile(
    r"^```.*?^```$|`[^`\n]+`|<!--.*?-->|\]\([^)\s]*\)|^\|.*?$|https?://\S+",
    re.DOTALL | re.MULTILINE,
)
"""Code, comments, addresses and tables."""


@dataclass(frozen=True, kw_only=True)
class FillConfig(Checked):
    """What is done with the pages."""

    check: bool = option(
        False, "write nothing: say which tables and numbers differ, and exit with 1 if any does"
    )


class Change(NamedTuple):
    """A part of a page that becomes another text.

    Attributes:
        what: for people; empty: it follows from another change.
    """

    begin: int
    end: int
    text: str
    what: str


@dataclass
class Page:
    """A page, what changes in it, and the numbers that have no source, by where they stand.

    Args:
        name: of the page, for messages.
    """

    name: str
    text: str
    changes: list[Change] = field(default_factory=list)
    without: list[tuple[int, str]] = field(default_factory=list)

    def where(self, begin: int) -> str:
        """A place of the page, for messages."""
        return f"{self.name}:{1 + self.text.count(chr(10), 0, begin)}"

    @property
    def filled(self) -> str:
        """The page with all changes."""
        parts = []
        end = 0
        for change in sorted(self.changes):
            parts += [self.text[end : change.begin], change.text]
            end = change.end
        return "".join([*parts, self.text[end:]])


def main(argv: Sequence[str]) -> int:
    asks = {"--help", "-h"} & set(argv)
    names = []
    for word in () if asks else argv:
        if word.startswith("-"):
            break
        names.append(word)
    require(
        bool(asks or names), "name the pages first: python -m lab.studies.fill PAGE.md [--check]"
    )
    require_utf8(argv)
    typed = read_flags(argv[len(names) :], FillConfig, description=__doc__ or "")
    config = build(FillConfig, typed)
    files = Files()
    n_wrong = 0
    for name in names:
        page = filled(name, _text_of(Path(name)), files)
        for line in said(page, is_checked=config.check):
            print_line(line)
        n_wrong += len(page.without) + (len(page.changes) if config.check else 0)
        if page.changes and not config.check:
            write_whole(Path(name), page.filled)
            print_line(f"| written: {name}")
    return int(bool(n_wrong))


class Files:
    """Files of results, each read once."""

    def __init__(self) -> None:
        self._known: dict[Path, Figures] = {}

    def __call__(self, path: Path) -> Figures:
        """The figures of a file."""
        require(path != Path(), "no file is named before it")
        if path not in self._known:
            self._known[path] = Figures(path)
        return self._known[path]


def _text_of(path: Path) -> str:
    try:
        return content_of(path).decode()
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8; save it as such") from None


def said(page: Page, *, is_checked: bool) -> Iterator[str]:
    """What is to be known of a page, in lines."""
    for change in sorted(page.changes):
        if change.what:
            yield f"| {page.where(change.begin)}: {change.what}"
    for begin, number in page.without:
        yield f"| {page.where(begin)}: {number} has no source"
    if is_checked and page.changes:
        yield f"| {page.name}: differs; python -m lab.studies.fill {page.name} writes it"


def filled(name: str, text: str, figures: Callable[[Path], Figures]) -> Page:
    """A page as its files give it.

    Raises:
        UsageError: if a marker is wrong, or asks for what is not there.
    """
    page = Page(name, text)
    strict = len(text)
    prose = _NO_PROSE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    code = re.sub(r"^```.*?^```$", lambda match: " " * len(match[0]), text, flags=re.DOTALL | re.M)
    begin = 0  # of the prose that the next numbers are of
    for comment in _COMMENT.finditer(code):
        where = page.where(comment.start())
        if comment[0] == STRICT:
            strict = comment.end()
        elif comment[0].startswith(_TABLE):
            _fill_table(page, comment, figures)
        elif comment[0].startswith(_NUMBERS):
            places = placed(
                prose[begin : comment.start()], sources_in(_inside(comment), where), where
            )
            _fill_numbers(page, begin, places, comment, figures)
            begin = comment.end()
    for place in placed(prose[begin:], [], name):
        page.without.append((begin + place.begin, place.text))
    page.without[:] = [one for one in page.without if one[0] >= strict]
    return page


def _inside(comment: re.Match[str]) -> str:
    return comment[0].removeprefix(_NUMBERS).removesuffix("-->")


def _fill_table(page: Page, comment: re.Match[str], figures: Callable[[Path], Figures]) -> None:
    where = page.where(comment.start())
    head, _, settings = comment[0].removeprefix(_TABLE).removesuffix("-->").partition("\n")
    words = head.split()
    require(len(words) == 2, f"{where}: write {_TABLE} KIND FILE, then settings, a line each")
    end = page.text.find(_END, comment.end())
    following = page.text.find("<!-- ", comment.end())
    require(end >= 0 and end == following, f"{where}: no {_END} follows")
    try:
        table = as_markdown(table_of(words[0], figures(Path(words[1])), settings))
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    text = f"\n\n{table}\n\n"
    if page.text[comment.end() : end] != text:
        page.changes.append(Change(comment.end(), end, text, f"table of {words[1]}: differs"))


def _fill_numbers(
    page: Page,
    begin: int,
    places: Sequence[Place],
    comment: re.Match[str],
    figures: Callable[[Path], Figures],
) -> None:
    """Write numbers of the prose from `begin` on, and their copies in the comment."""
    after = comment.start()
    for place in places:
        at = begin + place.begin
        if place.source is None:
            page.without.append((at, place.text))
            continue
        try:
            number = evaluated(place.source, figures)
        except UsageError as error:
            raise UsageError(f"{page.where(comment.start())}: {error}") from None
        listed = page.text.index(place.text, _line_of(page.text, place.text, after))
        after = listed + len(place.text)
        if number != place.text:
            what = f"{place.text} is {number} by {place.source.expression} of {place.source.path}"
            page.changes.append(Change(at, at + len(place.text), number, what))
            page.changes.append(Change(listed, listed + len(place.text), number, ""))


def _line_of(text: str, number: str, begin: int) -> int:
    """Where the next line begins that says where a number comes from."""
    found = re.compile(rf"^[ \t]*{re.escape(number)}\s+= ", re.MULTILINE).search(text, begin)
    assert found is not None
    return found.start()


if __name__ == "__main__":
    sys.argv[0] = "lab.studies.fill"
    run(main)
