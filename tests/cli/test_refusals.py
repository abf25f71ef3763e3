"""What refused command lines print: refusals.txt, made and compared here, read by people when a message changes.

    TXL_WRITE_REFUSALS=1 python -m pytest tests/cli/test_refusals.py -p no:xdist

writes the messages anew. `conftest.BEFORE` stands before the flags of a line.
"""

import os
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Here, contents

FILE = Path(__file__).with_name("refusals.txt")
BLOCK = re.compile(r"^\$ (?P<line>(?P<entry>\w+)\b.*)\n(?P<message>.*)$", re.MULTILINE)
BLOCKS = [match.groupdict() for match in BLOCK.finditer(FILE.read_text())]


@pytest.mark.parametrize("entry", sorted({block["entry"] for block in BLOCKS}))
def test_a_refused_command_line_prints_its_line_and_changes_nothing(entry: str, here: Here) -> None:
    before, found = contents_but_the_cache(), {}
    mine = {block["line"]: block["message"] for block in BLOCKS if block["entry"] == entry}
    for line in mine:
        found[line] = anywhere(here.refused(line))
    assert contents_but_the_cache() == before
    if "TXL_WRITE_REFUSALS" in os.environ:
        text = BLOCK.sub(lambda m: f"$ {m['line']}\n{found.get(m['line'], m['message'])}", FILE.read_text())
        FILE.write_text(text)
    else:
        assert found == mine


def contents_but_the_cache() -> dict[str, bytes]:
    """Without that of the text, whose checks are noted as they are made."""
    return {name: content for name, content in contents(Path()).items() if "txl-cache" not in name}


def anywhere(message: str) -> str:
    """Choices without quotes, which argparse leaves out from Python 3.12 on; HERE for the folder of the test."""
    message = message.replace(str(Path.cwd()), "HERE")
    return re.sub(r"\(choose from .*\)", lambda match: match[0].replace("'", ""), message)
