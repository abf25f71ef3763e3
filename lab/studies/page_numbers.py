"""Numbers in the prose of a page that come from files of results: their sources, which stand in a
comment after the paragraph, and the numbers that have none.

    It is at 114.6 beside 118.7.
    <!-- numbers: lab/results/recurrence_pays.json
    114.6 = mean("with, 6M", "best memory")
    118.7 = mean("without, 6M", "best memory")
    -->
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.studies.figures import COMPARED, Figures
from txl.config import UsageError, require

NUMBER = re.compile(r"(?<![\w.,-])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?![\w]|[.,-]\d)")
"""In a text; not what stands in a word, nor a version (2.13.0)."""


@dataclass(frozen=True)
class Source:
    """Where a number comes from.

    Attributes:
        text: the number as it is written.
        expression: what gives it, see `evaluated`; in quotes: what no file has, in words.
        path: of the file that is asked.
    """

    text: str
    expression: str
    path: Path

    @property
    def is_in_words(self) -> bool:
        """Whether nothing is computed: a setting, a figure of a paper."""
        return self.expression.startswith('"')


def sources_in(comment: str, where: str) -> list[Source]:
    """The sources of a comment: a line names a file, or is NUMBER = EXPRESSION, of the last file.

    Args:
        where: the comment, for messages.
    """
    path = Path()
    found = []
    for line in filter(None, comment.splitlines()):
        text, sign, expression = map(str.strip, line.partition(" = "))
        if not sign and text.endswith((".json", ".csv")):
            path = Path(text)
            continue
        is_number = bool(sign) and NUMBER.fullmatch(text) is not None
        require(is_number, f"{where}: {line!r}: write NUMBER = EXPRESSION, or the path of a file")
        found.append(Source(text, expression, path))
    return found


def like(text: str, value: float) -> str:
    """A value as a number of the page is written: as many digits, a plus if it has a sign."""
    _, _, fraction = text.partition(".")
    sign = "+" if text[0] == "+" else ""
    is_long = abs(round(value, len(fraction))) >= 10_000
    comma = "," if "," in text or is_long else ""
    return f"{value:{sign}{comma}.{len(fraction)}f}"


def evaluated(source: Source, figures: Callable[[Path], Figures]) -> str:
    """The number that a source gives, written as that of the page.

    An expression is arithmetic (+ - * / and exp, log) with numbers and questions:

        mean(ROW, COLUMN), deviation(ROW, COLUMN)   the study's metric, over the seeds
        nats(ROW, COLUMN)                           nats per token
        at(ROW, COLUMN, FIRST, LAST)                the same, by distance to the article's beginning
        tokens_at(ROW, COLUMN, FIRST, LAST)         of how many tokens
        cost(ROW, NAME)                             mean; of peak_mib the maximum
        difference, low, high, p, p_holm, detectable (CONTRAST), or (ROW, COLUMN) beside the baseline
        seeds(ROW), flag(ROW, NAME)
        group(PLACE, FREQUENCY, NAME)               of what lab.studies.occurrences writes as CSV
        value(NAME OR PLACE, ...)                   what stands there in any JSON

    Raises:
        UsageError: if it is none, or asks for what is not there.
    """
    if source.is_in_words:
        return source.text
    where = f"{source.text} = {source.expression}"
    try:
        tree = ast.parse(source.expression, mode="eval").body
    except (SyntaxError, ValueError):
        raise UsageError(f"{where}: no expression") from None
    try:
        value = _value(tree, lambda: figures(source.path))
    except UsageError:
        raise
    except (ArithmeticError, TypeError, KeyError, IndexError, ValueError) as error:
        raise UsageError(f"{where}: cannot be computed ({error})") from None
    is_number = isinstance(value, int | float) and math.isfinite(value)
    require(is_number, f"{where}: is {value!r}, no number")
    return like(source.text, value)


_OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_FUNCTIONS: Mapping[str, Callable[[float], float]] = {"exp": math.exp, "log": math.log}
_QUESTIONS = (
    "mean",
    "deviation",
    "nats",
    "at",
    "tokens_at",
    "cost",
    "seeds",
    "flag",
    "value",
    "group",
)


def _value(tree: ast.expr, figures: Callable[[], Figures]) -> Any:
    if isinstance(tree, ast.Constant):
        return tree.value
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        return -_value(tree.operand, figures)
    if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATORS:
        left = _value(tree.left, figures)
        return _OPERATORS[type(tree.op)](left, _value(tree.right, figures))
    is_call = isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.keywords
    if not is_call:
        raise UsageError(f"{ast.unparse(tree)}: write numbers, + - * / and questions only")
    assert isinstance(tree, ast.Call)
    assert isinstance(tree.func, ast.Name)
    arguments = []
    for one in tree.args:
        arguments.append(_value(one, figures))
    return _answer(tree.func.id, arguments, figures)


def _answer(name: str, arguments: Sequence[Any], figures: Callable[[], Figures]) -> Any:
    if name in _FUNCTIONS:
        return _FUNCTIONS[name](*arguments)
    if name in COMPARED:
        return figures().compared(name, *arguments)
    there = ", ".join([*_QUESTIONS, *COMPARED, *_FUNCTIONS])
    require(name in _QUESTIONS, f"{name}: no such question; there are {there}")
    return getattr(figures(), name)(*arguments)


@dataclass(frozen=True)
class Place:
    """A number of a page: where it begins, how it is written, and its source, if it has one."""

    begin: int
    text: str
    source: Source | None = None


def placed(prose: str, sources: Sequence[Source], where: str) -> list[Place]:
    """The numbers of a text that have a source, and those with a decimal point that have none, in
    order. Sources stand in the order of their numbers.

    Raises:
        UsageError: if a source is of a number that does not stand there.
    """
    found = []
    rest = list(sources)
    for match in NUMBER.finditer(prose):
        if rest and rest[0].text == match[0]:
            found.append(Place(match.start(), match[0], rest.pop(0)))
        elif "." in match[0]:
            found.append(Place(match.start(), match[0]))
    left = f"{rest[0].text} = {rest[0].expression}" if rest else ""
    require(not rest, f"{where}: {left}: the text before it has no such number in this order")
    return found
