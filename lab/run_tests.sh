#!/usr/bin/env bash
# shellcheck disable=SC2154 # environment.sh sets python
# Run the tests of the laboratory, as ../run_tests.sh runs those of txl: lab/run_tests.sh -m "not slow"
set -euo pipefail

root=$(CDPATH='' cd "$(dirname "$0")/.." && pwd)
# shellcheck source=scripts/environment.sh disable=SC1091 # without -x it is not followed
source "$root/scripts/environment.sh"
txl_python "$root" lab/requirements.txt
cd "$root"
unset PYTHONDONTWRITEBYTECODE # else every worker compiles all tests anew
if [ $# -eq 0 ] || [[ $* != *lab/tests* ]]; then
    set -- "$@" lab/tests
fi
exec "$python" -m pytest -n auto --dist worksteal "$@"
