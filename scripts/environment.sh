# shellcheck shell=bash
# Sourced by run_wt103.sh and run_tests.sh: sets `python` to an interpreter with the packages of a requirements file.
# .venv is created, or updated if stale, from the newest python3, or from PYTHON if set.
# A PYTHON that already has PyTorch is used as is. The package txl is installed in .venv, from this folder.

txl_python() {
    local here=$1 requirements=$2 venv=$1/.venv
    if [[ ${PYTHON:-} == */* && $PYTHON != /* ]]; then
        PYTHON=$PWD/$PYTHON # callers go to other folders
    fi
    if [ -n "${PYTHON:-}" ] && ! "$PYTHON" -c '' 2>/dev/null; then
        echo "PYTHON=$PYTHON: no Python that runs; name another, or leave PYTHON out" >&2
        exit 2
    fi
    if [ -n "${PYTHON:-}" ] && "$PYTHON" -c 'import torch' 2>/dev/null; then
        python=$PYTHON
        return
    fi
    python=$venv/bin/python
    local base candidate wanted stamp=$venv/installed-${requirements//\//-}
    wanted=$(cat "$here"/requirements*.txt "$here/$requirements" "$here/pyproject.toml")
    if [ -x "$python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    for candidate in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
        base=$candidate
        "$base" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break
        base=
    done
    if [ -z "$base" ]; then
        echo "python3: Python 3.11 or newer is needed; install it, or name one with PYTHON=/path/to/python" >&2
        exit 2
    fi
    echo "installing the packages of $requirements into $venv (PyTorch is large: this takes minutes)" >&2
    "$base" -m venv "$venv"
    "$python" -m pip install --quiet --disable-pip-version-check -r "$here/$requirements" >&2
    # the package itself, from this folder, so that scripts elsewhere can import txl
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --editable "$here" >&2
    echo "$wanted" >"$stamp"
}
