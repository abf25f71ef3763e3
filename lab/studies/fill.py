"""Write Markdown pages from their templates, which ask files of results for tables and numbers:

python -m lab.studies.fill PAGE.md ...

The template of a page stands beside it, PAGE.md.jinja; lab/docs/studies.md describes it.
"""

import functools
import math
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from lab.studies.figures import Figures
from lab.studies.page_tables import TABLES
from txl.config import Checked, UsageError, build, option, require
from txl.files import content_of, write_whole
from txl.programs.run import run
from txl.runtime.log import print_line
from txl.settings.flags import read_flags, require_utf8


@dataclass(frozen=True, kw_only=True)
class FillConfig(Checked):
    """What is done with the pages."""

    check: bool = option(
        False, "write nothing: say which pages differ from their templates; exit with 1 if any does"
    )


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
    n_other = 0
    for name in names:
        page = Path(name)
        text = rendered(Path(f"{name}.jinja"))
        if page.is_file() and page.read_text(encoding="utf-8") == text:
            continue
        n_other += 1
        if config.check:
            print_line(f"| {name}: differs; python -m lab.studies.fill {name} writes it")
        else:
            write_whole(page, text)
            print_line(f"| written: {name}")
    return int(config.check and n_other > 0)


def rendered(path: Path) -> str:
    """The page of a template.

    Raises:
        UsageError: if it is no template, or asks for what is not there, with its line.
    """
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True
    )
    environment.filters["f"] = format
    environment.globals |= TABLES
    environment.globals |= {"exp": math.exp, "log": math.log}
    environment.globals |= {"results": functools.cache(_results), "cited": _cited}
    try:
        code = environment.compile(content_of(path).decode(), filename=str(path))
        template = jinja2.Template.from_code(environment, code, environment.globals)
        return template.render()
    except jinja2.TemplateSyntaxError as error:
        raise UsageError(f"{path}:{error.lineno}: {error.message}") from None
    except (ArithmeticError, LookupError, TypeError, ValueError, jinja2.TemplateError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        if not lines:
            raise
        raise UsageError(f"{path}:{lines[-1]}: {error}") from None


def _results(path: str) -> Figures:
    return Figures(Path(path))


def _cited(number: str, source: str) -> str:
    """A number that no file has; its source, in words, is read in the template."""
    return number


if __name__ == "__main__":
    sys.argv[0] = "lab.studies.fill"
    run(main)
