#!/usr/bin/env python
"""Generate text with a trained Transformer-XL; see txl/programs/generate.py."""

from txl.programs.launch import launch

if __name__ == "__main__":
    launch("generate")
