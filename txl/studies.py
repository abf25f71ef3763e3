"""Studies are in the laboratory: whoever runs `python -m txl.studies`, or a module below it, is told
so.
"""

import sys

from txl.cli.launch import MOVED, refuse_moved

refuse_moved(next((name for name in MOVED if f"txl.studies.{name}" in sys.orig_argv), "studies"))
