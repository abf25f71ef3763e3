#!/usr/bin/env python
"""Generate text with a trained Transformer-XL; see txl/commands/generate.py."""

from txl.cli.launch import launch

if __name__ == "__main__":
    launch("generate")
