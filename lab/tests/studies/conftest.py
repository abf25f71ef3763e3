"""The text that tests of the command line have."""

from tests.cli.conftest import write_text

__all__ = ["write_text"]
