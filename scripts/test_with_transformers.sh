#!/usr/bin/env bash
# Run the tests of txl.hf and txl.lm_eval with the newest transformers and lm-eval, and those of parquet, in an
# environment of their own (.venv-transformers), and compare with transformers 4.35.2, the last version that tested
# TransfoXL (.venv-transformers-4). Arguments go to pytest. PYTHON names the Python, PIP_EXTRA_INDEX_URL an index with CPU
# builds of PyTorch, which are much smaller.
set -euo pipefail

here=$(CDPATH='' cd "$(dirname "$0")/.." && pwd)

environment() { # its folder, then what pip installs
    local venv=$1
    shift
    if [ "$(cat "$venv/installed" 2>/dev/null)" != "$*" ]; then
        echo "installing $* into $venv (PyTorch is large: this takes minutes)" >&2
        "${PYTHON:-python3}" -m venv --clear "$venv"
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" >&2
        echo "$*" >"$venv/installed"
    fi
}

tools=$(grep -hE '^(torch|einops|safetensors|tqdm|pytest|hypothesis)==' "$here"/requirements*.txt | tr '\n' ' ')
torch=$(grep -E '^torch==' "$here/requirements.txt")
# shellcheck disable=SC2086 # the words of a list
environment "$here/.venv-transformers" $tools tensorboard matplotlib 'transformers>=5.4' accelerate peft sacremoses lm-eval \
    pyarrow gymnasium
environment "$here/.venv-transformers-4" "$torch" 'numpy<2' 'transformers==4.35.2' sacremoses
export TXL_TRANSFORMERS_4=$here/.venv-transformers-4/bin/python
cd "$here"
unset PYTHON # of the environment of the other tests
pages="test_a_module_has_its_flags or test_the_python_of_a_page_runs"
HF_HUB_OFFLINE=1 .venv-transformers/bin/python -m pytest -W default tests/cli/test_documented_commands.py -k "$pages"
.venv-transformers/bin/python -m pytest -W default tests/data -k parquet
HF_HUB_OFFLINE=1 exec .venv-transformers/bin/python -m pytest -W default tests/hf tests/lm_eval "$@"
