"""Studies are in the laboratory: whoever runs `python -m txl.studies`, or a module below it, is told
so.
"""

import sys

from txl.programs.launch import GONE, refuse_gone

refuse_gone(next((name for name in GONE if f"txl.studies.{name}" in sys.orig_argv), "studies"))
