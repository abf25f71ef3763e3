"""`python -m txl.convert SOURCE FOLDER`; see txl/programs/convert.py."""

import sys

from txl.programs.launch import launch

if __name__ == "__main__":
    sys.argv[0] = "txl.convert"
    launch("convert")
