"""Apply each fault of mutants.toml to a copy of the repository and see which test notices it:

python -m tests.mutants [NAME ...]

Prints a table; the exit status is 1 if a fault goes unnoticed.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutants.toml")


def mutants() -> list[dict[str, str]]:
    """All faults, in the order of the file."""
    return tomllib.loads(LIST.read_text())["mutant"]


def faulty(text: str, mutant: dict[str, str]) -> str:
    """The file's text with the fault.

    Raises:
        ValueError: if the line is not there, or there twice.
    """
    if text.count(mutant["was"]) != 1:
        raise ValueError(f"{mutant['name']}: {mutant['file']} has its line {text.count(mutant['was'])} times")
    return text.replace(mutant["was"], mutant["becomes"])


def copy_of_the_repository(folder: Path) -> Path:
    """Tracked files, as they are in the work tree."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in names:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def killer(copy: Path, tests: list[str]) -> str | None:
    """The first fast test that fails, or None."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "auto", "-m", "not slow", "-p", "no:cacheprovider"]
    out = subprocess.run([*command, *tests], cwd=copy, capture_output=True, text=True, check=False)
    if out.returncode in (0, 5):  # 5: none of them is fast
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", out.stdout, re.MULTILINE)
    return failed[1] if failed else out.stdout.strip().splitlines()[-1]


def main(names: list[str]) -> int:
    survivors = 0
    with tempfile.TemporaryDirectory() as temporary:
        copy = copy_of_the_repository(Path(temporary))
        for mutant in mutants():
            if names and mutant["name"] not in names:
                continue
            path = copy / mutant["file"]
            right, start = path.read_text(), time.monotonic()
            path.write_text(faulty(right, mutant))
            by = killer(copy, mutant["tests"].split()) or killer(copy, [])
            path.write_text(right)
            survivors += by is None
            print(f"| {mutant['name']} | {by or '**survived**'} | {time.monotonic() - start:.0f} s |", flush=True)
    print(f"{survivors} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
