#!/usr/bin/env python
"""Train a Transformer-XL on a folder of text; see txl/commands/train.py."""

from txl.cli import run
from txl.commands.train import main
from txl.data_utils.files import DataError

if __name__ == "__main__":
    run(main, DataError)
