#!/usr/bin/env bash
# shellcheck disable=SC2034,SC2154 # launch.sh reads what is set here, and sets root and python
# WikiText-103: train, evaluate and generate; `demo` does all three on Python's bundled documentation, and draws a page;
# `try` does it on any text.
set -euo pipefail

script=run_wt103.sh name=wt103
# shellcheck source=scripts/launch.sh disable=SC1091 # without -x it is not followed
source "$(dirname "$0")/scripts/launch.sh"

first_line="run_wt103.sh demo                     [flags of train.py]
       run_wt103.sh try TEXT                 [--minutes 5] [flags of train.py]
       "
text_is=" (train.txt, valid.txt, test.txt)"
data=(--data "$root/data/wikitext-103" --dataset wt103)
sizes=(base base_modern large nv_base nv_large)

demo() {
    local run=$root/runs/demo own=(--overwrite) word next=false
    for word in "$@"; do # the last --work_dir counts, as in train.py
        case $next$word in
        true*) run=$word own=() ;;
        false--work_dir=* | false--work-dir=*) run=${word#*=} own=() ;;
        false--resume | false--resume=*) own=() ;;
        esac
        [[ $word = --work_dir || $word = --work-dir ]] && next=true || next=false
    done
    local text=(--data "$root/data/pydoc" --dataset pydoc)
    "$python" "$root/train.py" "${text[@]}" --work_dir "$run" "${own[@]}" --preset demo "$@"
    echo
    "$python" "$root/generate.py" "--work_dir=$run" --prompt "This module provides" --preset demo
    echo
    # as eval.py --borders both, and a page of it
    PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} "$python" -m txl report "--runs=$run" --split test --mem_len 0 8 32 128
}

if [ "${1:-}" = try ]; then
    txl_python "$root" requirements.txt
    export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
    exec "$python" -m txl "$@"
fi
if [ "${1:-}" != demo ]; then
    txl_run "$@"
fi
shift
for word in "$@"; do
    [[ $word != --help && $word != -h ]] || usage 0 2>&1
done
txl_python "$root" requirements.txt
demo "$@"
