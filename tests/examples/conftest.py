"""The trained run that tests of the command line have."""

from tests.cli.conftest import entry_points, trained, write_text

__all__ = ["entry_points", "trained", "write_text"]
