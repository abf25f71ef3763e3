#!/usr/bin/env python
"""Evaluate a trained Transformer-XL; see txl/commands/eval.py."""

from txl.cli import run
from txl.commands.eval import main
from txl.data_utils.files import DataError

if __name__ == "__main__":
    run(main, DataError)
