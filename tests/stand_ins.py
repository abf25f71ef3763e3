"""Programs that stand for others."""

import sys
from pathlib import Path


def write_program(path: Path, source: str) -> None:
    """Make a file a program of this Python.

    A shell starts it: a line `#!` cannot name a Python in a folder with a space.
    """
    script = path.with_name(f"{path.name}.py")
    script.write_text(source)
    path.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{script}' \"$@\"\n")
    path.chmod(0o755)
