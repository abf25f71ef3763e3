#!/usr/bin/env python
"""Train a Transformer-XL on a folder of text; see txl/programs/train.py."""

from txl.programs.launch import launch

if __name__ == "__main__":
    launch("train")
