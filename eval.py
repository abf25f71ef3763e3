#!/usr/bin/env python
"""Evaluate a trained Transformer-XL; see txl/commands/eval.py."""

from txl.cli.launch import launch

if __name__ == "__main__":
    launch("eval")
