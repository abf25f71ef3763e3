#!/usr/bin/env python
"""Generate text with a trained Transformer-XL; see txl/commands/generate.py."""

from txl.cli import run
from txl.commands.generate import main
from txl.data_utils.files import DataError

if __name__ == "__main__":
    run(main, DataError)
