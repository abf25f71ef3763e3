#!/usr/bin/env python
"""Evaluate a trained Transformer-XL; see txl/programs/eval.py."""

from txl.programs.launch import launch

if __name__ == "__main__":
    launch("eval")
