"""The trained run and the caller of commands that tests of the command line have."""

from tests.cli.conftest import call, entry_points, run_folder, text, trained, training, write_text

__all__ = ["call", "entry_points", "run_folder", "text", "trained", "training", "write_text"]
