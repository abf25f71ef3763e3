# Sourced by run_wt103.sh and run_tests.sh: sets `python` to an interpreter with the packages of a requirements file.
# PYTHON=/path/to/python, if set, is taken as it is; otherwise .venv is created and filled where it is missing or stale.

txl_python() {
    local here=$1 requirements=$2 venv=$1/.venv
    if [ -n "${PYTHON:-}" ]; then
        python=$PYTHON
        return
    fi
    python=$venv/bin/python
    local wanted stamp=$venv/installed-$requirements
    wanted=$(cat "$here/requirements.txt" "$here/$requirements")
    if [ -x "$python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "python3: Python 3.11 or newer is needed; install it, or name one with PYTHON=/path/to/python" >&2
        exit 2
    fi
    echo "installing the packages of $requirements into $venv" >&2
    python3 -m venv "$venv"
    "$python" -m pip install --quiet --disable-pip-version-check -r "$here/$requirements" >&2
    echo "$wanted" >"$stamp"
}
