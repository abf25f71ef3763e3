#!/usr/bin/env bash
# shellcheck disable=SC2154 # environment.sh sets python
# Run the tests, in an environment created where it is missing. Arguments go to pytest: ./run_tests.sh -m "not slow"
# TXL_LONG_TESTS=1 adds the long part; see CONTRIBUTING.md.
set -euo pipefail

here=$(CDPATH='' cd "$(dirname "$0")" && pwd)
# shellcheck source=scripts/environment.sh disable=SC1091 # without -x it is not followed
source "$here/scripts/environment.sh"
txl_python "$here" requirements-dev.txt
cd "$here"
unset PYTHONDONTWRITEBYTECODE # else every worker compiles all tests anew
[[ -n ${TXL_LONG_TESTS:-} ]] || echo "without the long part (torchrun, two hosts, installation); TXL_LONG_TESTS=1 adds it"
exec "$python" -m pytest -n auto --dist worksteal "$@"
