"""Studies: a grid of trainings with seeds, evaluated alike, with a table that says what differs
from chance.
"""

import sys
from importlib.util import find_spec

if find_spec("pandas") is None or find_spec("statsmodels") is None:
    print(
        "lab.studies: pandas or statsmodels is not installed; pip install -r lab/requirements.txt",
        file=sys.stderr,
    )
    raise SystemExit(2)
