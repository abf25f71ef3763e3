"""The caller of commands that tests of the command line have."""

from tests.cli.conftest import call, entry_points

__all__ = ["call", "entry_points"]
