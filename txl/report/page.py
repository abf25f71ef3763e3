"""The page: one HTML file without network, drawn from reports alone."""

import base64
import dataclasses
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from txl.config import UsageError
from txl.report import claims
from txl.report.record import Report, Shown
from txl.runtime.outputs import text_kind, write_text

_OLDER = "script-src 'sha256-.*<title>Does memory help?"
PAGE = text_kind(
    "txl report", f'<!doctype html>.*(<meta name="generator" content="txl report">|{_OLDER})'
)


def page_of(reports: Sequence[Report]) -> str:
    """The page of one run, or of several that are compared. It holds all that it shows; its policy
    lets nothing be loaded, and no script run but its own.
    """
    from matplotlib.style import context

    from txl.report import charts  # imports matplotlib, which takes a second

    reports = told_apart(reports)
    style = _file("page.css")
    script = _file("page.js")
    environment = Environment(
        loader=DictLoader({"page": _file("page.html")}),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["svg"] = charts.as_svg
    texts = []
    for report in reports:
        if report.shown is None:
            texts.append("")
        else:
            texts.append(packed(report.shown, report.compared, report.tgt_len))
    with (
        resources.as_file(resources.files("txl.report") / "page.mplstyle") as drawn,
        context(drawn),
    ):
        return environment.get_template("page").render(
            program=PAGE.name,
            reports=reports,
            charts=charts,
            claims=claims,
            measure=claims.measure_of(reports),
            style=Markup(style),
            script=Markup(script),
            style_digest=_digest(style),
            script_digest=_digest(script),
            texts=texts,
            settings=claims.settings(reports),
        )


def told_apart(reports: Sequence[Report]) -> list[Report]:
    """The reports, with a number in the names of those that are called alike."""
    names = Counter(report.name for report in reports)
    n_named: Counter[str] = Counter()
    found = []
    for report in reports:
        if names[report.name] > 1:
            n_named[report.name] += 1
            report = dataclasses.replace(report, name=f"{report.name} ({n_named[report.name]})")
        found.append(report)
    return found


def write_page(path: Path, reports: Sequence[Report]) -> None:
    """Write the page, see `output`.

    Raises:
        UsageError: if figures of the reports contradict each other.
    """
    try:
        content = page_of(reports)
    except (ArithmeticError, LookupError, ValueError) as error:
        names = ", ".join(report.name for report in reports)
        raise UsageError(
            f"{names}: its figures contradict each other ({error}); measure again: txl report RUN"
            " --measure"
        ) from error
    write_text(path, content, PAGE)


def _file(name: str) -> str:
    return resources.files("txl.report").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def packed(shown: Shown, compared: Sequence[int], tgt_len: int) -> str:
    """The shown text for the page's script: deflated, in base64.

    Its bytes, little-endian: the length of what follows as 32 bits; JSON, filled up with spaces to
    an even length;
    the losses by length and token in thousandths of a nat, 16 bits; of the attention the distances,
    16 bits, the keys of each map and token and the shares in 255ths, 8 bits.
    """
    looked = shown.looked
    head: dict[str, Any] = {
        "first": shown.first,
        "pieces": shown.pieces,
        "before": shown.before,
        "lengths": shown.mem_len_M,
        "compared": list(compared),
        "segment": tgt_len,
        "attended": 0,
        "maps": [],
        "keys": 0,
    }
    arrays = [np.rint(np.array(shown.nats_MN) * 1000).astype("<u2")]
    if looked is not None:
        head["attended"] = looked.n_token
        head["maps"] = [[one.layer, one.head] for one in looked.maps]
        head["beyond"] = looked.beyond_P
        head["keys"] = len(looked.back_K)
        head["reading"] = looked.mem_len
        arrays.append(np.array(looked.back_K, dtype="<u2"))
        arrays.append(np.array(looked.count_PN, dtype=np.uint8))
        arrays.append(np.array(looked.share_K, dtype=np.uint8))
    text = json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    text += b" " * (len(text) % 2)
    content = len(text).to_bytes(4, "little") + text + b"".join(array.tobytes() for array in arrays)
    return base64.b64encode(zlib.compress(content, 9)).decode()
