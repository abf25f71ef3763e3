#!/usr/bin/env python
"""Train a Transformer-XL on a folder of text; see txl/commands/train.py."""

from txl.cli.launch import launch

if __name__ == "__main__":
    launch("train")
