#!/usr/bin/env bash
# Test the page of `txl report` in Chromium, in an environment of its own (.venv-browser), with playwright and axe.
# Arguments go to pytest; `--picture` writes the README's picture of a page, docs/pictures/report.png, from the demo's
# runs/demo/report.json. CHROMIUM names the browser; where there is none, root installs Debian's. PYTHON names the
# Python, PIP_EXTRA_INDEX_URL an index with CPU builds of PyTorch, which are much smaller.
set -euo pipefail

here=$(CDPATH='' cd "$(dirname "$0")/.." && pwd)
venv=$here/.venv-browser

browser() { # the path of a browser; empty: there is none
    if [ -n "${CHROMIUM:-}" ]; then
        command -v "$CHROMIUM" || true
        return
    fi
    command -v chromium || command -v google-chrome || true
}

if [ -z "$(browser)" ]; then
    if [ -n "${CHROMIUM:-}" ] || [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "${CHROMIUM:-chromium}: no such browser; install chromium, or name one with CHROMIUM=/path/to/chromium" >&2
        exit 2
    fi
    echo "installing chromium (350 MB)" >&2
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-noto-color-emoji >&2
fi
CHROMIUM=$(browser)
export CHROMIUM

tools=$(grep -hE '^(playwright|axe-playwright-python)==' "$here/requirements-browser.txt" | tr '\n' ' ')
packages=$(cat "$here/requirements.txt" "$here/requirements-browser.txt")
if [ "$(cat "$venv/installed" 2>/dev/null)" != "$packages" ]; then
    echo "installing $tools and the packages of requirements.txt into $venv (this takes minutes)" >&2
    "${PYTHON:-python3}" -m venv --clear "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$here/requirements-browser.txt" >&2
    echo "$packages" >"$venv/installed"
fi
cd "$here"
if [ "${1:-}" = --picture ]; then
    exec "$venv/bin/python" -m tests.browser.picture "${@:2}"
fi
exec "$venv/bin/python" -m pytest tests/browser "$@"
