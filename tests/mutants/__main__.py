"""Apply each fault of mutants.toml to a copy of the repository and see which fast test fails:

python -m tests.mutants [--hinted] [NAME ...]

Prints a table in the order of the file; the exit status is 1 if a fault survives. One fault a CPU core at a time. First
the tests that the list names are run, then all fast ones, of txl or of the laboratory; with --hinted only the former.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutants.toml")
PYTEST = [
    sys.executable,
    "-m",
    "pytest",
    "-x",
    "-q",
    "-m",
    "not slow",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
]
LIMIT_S = 1200
"""A fault that makes a test hang is noticed too."""


def mutants() -> list[dict[str, str]]:
    """All faults, in the order of the file."""
    return tomllib.loads(LIST.read_text())["mutant"]


def faulty(text: str, mutant: dict[str, str]) -> str:
    """The file's text with the fault.

    Raises:
        ValueError: if the line is not there, or there twice.
    """
    if text.count(mutant["was"]) != 1:
        raise ValueError(
            f"{mutant['name']}: {mutant['file']} has its line {text.count(mutant['was'])} times"
        )
    return text.replace(mutant["was"], mutant["becomes"])


@contextmanager
def applied(copy: Path, mutant: dict[str, str]) -> Iterator[None]:
    """The copy has the fault meanwhile."""
    path = copy / mutant["file"]
    right = path.read_text()
    path.write_text(faulty(right, mutant))
    try:
        yield
    finally:
        path.write_text(right)


def copy_of_the_repository(folder: Path) -> Path:
    """Tracked files, as they are in the work tree."""
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    for name in names:
        path = ROOT / name
        if path.is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder / name)
    return folder


def killer(copy: Path, tests: list[str], limit_s: float = LIMIT_S) -> str | None:
    """The first fast test that fails, or None."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        out = subprocess.run(
            [*PYTEST, *tests],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {limit_s} s"
    if out.returncode in (0, 5):  # 5: none of them is fast
        return None
    if "file or directory not found" in out.stderr:
        raise FileNotFoundError(f"{' '.join(tests)}: not all of them are tracked by git")
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", out.stdout, re.MULTILINE)
    return (
        failed[1].partition("[")[0]
        if failed
        else (out.stdout.strip() or out.stderr.strip()).splitlines()[-1]
    )


def main(argv: list[str]) -> int:
    if "--help" in argv:
        print(__doc__)
        sys.exit()
    names = [word for word in argv if word != "--hinted"]
    asked = [mutant for mutant in mutants() if not names or mutant["name"] in names]
    n_core = len(os.sched_getaffinity(0))
    with ExitStack() as stack, ThreadPoolExecutor(n_core) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for _ in range(n_core):
            copies.put(
                copy_of_the_repository(Path(stack.enter_context(tempfile.TemporaryDirectory())))
            )

        def tried(mutant: dict[str, str]) -> str | None:
            copy = copies.get()
            try:
                with applied(copy, mutant):
                    by = killer(copy, mutant["tests"].split())
                    if by or "--hinted" in argv:
                        return by
                    others = ["--deselect=tests/hygiene"]
                    if mutant["file"].startswith("lab/"):
                        others = ["lab/tests"]
                    return killer(copy, others)
            finally:
                copies.put(copy)

        survivors = 0
        print("| fault | file | noticed by |\n|---|---|---|")
        for mutant, by in zip(asked, pool.map(tried, asked), strict=True):
            survivors += by is None
            print(
                f"| {mutant['name']} | {mutant['file']} | {f'`{by}`' if by else '**nothing**'} |",
                flush=True,
            )
    print(
        f"\n{len(asked)} faults, {len(asked) - survivors} noticed by the fast tests, {survivors} not."
    )
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
