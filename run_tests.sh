#!/usr/bin/env bash
# Run the tests, in an environment created where it is missing. Arguments go to pytest: ./run_tests.sh -m "not slow"
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
source "$here/scripts/environment.sh"
txl_python "$here" requirements-dev.txt
cd "$here"
exec "$python" -m pytest -n auto --dist worksteal "$@"
