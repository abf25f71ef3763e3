#!/usr/bin/env bash
# Run the tests with the oldest versions that pyproject.toml allows, in an environment of their own (.venv-oldest).
# Arguments go to pytest: scripts/test_with_oldest.sh tests/laws. PYTHON names the Python, PIP_EXTRA_INDEX_URL an
# index with CPU builds of PyTorch, which are much smaller.
set -euo pipefail

here=$(CDPATH='' cd "$(dirname "$0")/.." && pwd)
venv=$here/.venv-oldest
oldest=$("${PYTHON:-python3}" - "$here/pyproject.toml" <<'PYTHON'
import re
import sys
import tomllib

with open(sys.argv[1], "rb") as file:
    project = tomllib.load(file)["project"]
optional = project["optional-dependencies"]
for one in [*project["dependencies"], *optional["floater"], *optional["agents"]]:
    print(re.sub(r">=([\d.]+)[^;]*", r"==\1 ", one))
PYTHON
)
if [ "$(cat "$venv/installed" 2>/dev/null)" != "$oldest" ]; then
    "${PYTHON:-python3}" -m venv --clear "$venv"
    grep -E '^(pytest|hypothesis|setuptools)' "$here/requirements-dev.txt" >"$venv/tools.txt"
    echo "$oldest" >"$venv/oldest.txt"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$venv/oldest.txt" -r "$venv/tools.txt"
    echo "$oldest" >"$venv/installed"
fi
# old libraries use what newer ones beneath them call deprecated
PYTHON=$venv/bin/python exec "$here/run_tests.sh" -W ignore::DeprecationWarning "$@"
