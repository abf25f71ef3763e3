"""Which tests may be left out, and why: never because of the processor."""

import ast
from collections.abc import Iterator

from tests.forks import ROOT

KNOWN = {
    "'TXL_LONG_TESTS' not in os.environ",
    "not IS_INSTALLED",  # lm-eval
    "not Path(python).is_file()",  # transformers 4
    "CHROMIUM is None",
    "not can_measure()",  # the peak of a part of a program: Linux
    "PeakMemory(CPU).bytes() is None",
    "not sys.platform.startswith('linux')",
    "not shutil.which('timeout')",
    "not torch.__version__.startswith('2.13.')",  # internals of one version
    "up.returncode == 77",  # network namespaces
    "sizes[2] * sizes[3] > 2000 and dense._CACHE == 60",  # the size of the case
}
"""Conditions that ask for a package, a program or a system. A processor's absence of an instruction is none: a fast
path has a form that runs everywhere, see `tests/processors.py`."""


def conditions() -> Iterator[tuple[str, str]]:
    """Each `skipif(condition)` and each `if condition: pytest.skip()` of the tests, with its place."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        source = path.read_text()
        for node in ast.walk(ast.parse(source)):
            where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.skipif"):
                yield where, ast.unparse(node.args[0])
            if isinstance(node, ast.If) and any(
                "pytest.skip(" in ast.unparse(line) for line in node.body
            ):
                yield where, ast.unparse(node.test)


def test_no_test_is_left_out_because_of_the_processor() -> None:
    unknown = [
        f"{where}: {condition}" for where, condition in conditions() if condition not in KNOWN
    ]
    assert unknown == []
