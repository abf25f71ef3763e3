"""`python -m txl.convert SOURCE FOLDER`; see txl/commands/convert.py."""

import sys

from txl.cli.launch import launch

if __name__ == "__main__":
    sys.argv[0] = "txl.convert"
    launch("convert")
