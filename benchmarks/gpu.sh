#!/usr/bin/env bash
# On a machine with a GPU: whether everything is right there, then every figure, in under ten minutes.
#
#     bash benchmarks/gpu.sh [FOLDER]           results as JSON and logs, in benchmarks/results/gpu unless named, and
#                                               packed into FOLDER.tar.gz
#     bash benchmarks/gpu.sh --tests [FLAGS]    the tests instead, on as many cores as there are; needs pytest-xdist.
#                                               They are those of a CPU: tests/conftest.py hides the GPU from them
#
# Parts stand in the order of what they are worth, each with its share of the time; what one leaves over goes to those
# after it, and those at the end have nothing but that. A part that fails, or is stopped when its time is up, keeps
# what it has measured and does not stop the others. The table at the end says how each one ended; the exit status is 1
# if a check is WRONG or a part failed. PYTHON names the interpreter, SECONDS_IN_ALL the limit of it all [585].
set -uo pipefail

called_from=$PWD
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

if [[ ${1:-} == --tests ]]; then
    shift
    # its warnings are errors here, and that of pytest-benchmark beside xdist is one
    exec "$python" -m pytest -q -n "$(nproc)" -p no:benchmark tests "$@"
fi

out=${1:-$PWD/benchmarks/results/gpu}
[[ $out == /* ]] || out=$called_from/$out
out=${out%/}
in_all=${SECONDS_IN_ALL:-585}
begin=$SECONDS
due=0 # seconds after the beginning at which the parts so far must be done
n_failed=0
summary=()
mkdir -p "$out" || exit
written=$out/.written # the names of what this script has written: nothing else is removed
for path in "$out"/*.log "$out"/*.json "$out/table.txt" "$out.tar.gz"; do
    if [[ -e $path ]] && ! grep -qxF -- "$(basename "$path")" "$written" 2>/dev/null; then
        echo "$path: not written by this script; name another folder, or move the file" >&2
        exit 2
    fi
done
rm -f "$out"/*.log "$out"/*.json
printf '%s\n' table.txt "$(basename "$out").tar.gz" >"$written" || exit

# planned SECONDS: add a share of 585, in proportion if the limit is another one, to `due`; the time until then in `left`
planned() {
    due=$((due + $1))
    left=$((due * in_all / 585 - (SECONDS - begin)))
}

# ended NAME SECONDS CODE LIMIT [NOTE]: a line of the table, and whether it is a failure
ended() {
    local name=$1 seconds=$2 code=$3 limit=$4 note=${5:-}
    if ((code == 124 || code == 137)); then
        note="stopped after $limit s"
    elif ((code != 0)); then
        note="status $code"
    fi
    [[ -z $note ]] || n_failed=$((n_failed + 1))
    summary+=("$(printf '%-18s %4d s  %s' "$name" "$seconds" "${note:-done}")")
}

# part SECONDS NAME MODULE [FLAGS]: one benchmark, its output in NAME.log and its results in NAME.json
part() {
    local name=$2 module=$3 start=$SECONDS left code note=""
    planned "$1"
    shift 3
    if ((left < 10 * in_all / 585 || left < 1)); then
        summary+=("$(printf '%-18s         left out: no time' "$name")")
        return
    fi
    printf '%s\n' "$name.json" "$name.log" >>"$written"
    echo "== $name, at most $left s: python -m $module $*"
    timeout --kill-after=5 "$left" "$python" -m "$module" "$@" --json "$out/$name.json" >"$out/$name.log" 2>&1
    code=$?
    ((code == 0)) || tail -n 3 "$out/$name.log"
    ! grep -q 'failed:' "$out/$name.log" || note="a program failed"
    ended "$name" $((SECONDS - start)) "$code" "$left" "$note"
}

# Kernels are compiled on one core, and there are many: the checks are shared among processes, beside which others
# compile what is timed later (their caches are on the disk). Nothing is timed meanwhile.
correctness() {
    local start=$SECONDS left code worst=0 shares pids=() pid shape i
    planned "$1"
    ((left >= 1)) || left=1
    shares=$(env -u OMP_NUM_THREADS nproc) # which it would print
    shares=$((shares > 12 ? 12 : shares))
    echo "== correctness, at most $left s"
    for ((i = 0; i < shares; i++)); do
        printf '%s\n' "check-$i.json" "check-$i.log" >>"$written"
        timeout --kill-after=5 "$left" "$python" -m benchmarks.gpu_check --share "$i" "$shares" \
            --json "$out/check-$i.json" >"$out/check-$i.log" 2>&1 &
        pids+=($!)
    done
    for shape in $shapes; do
        echo "compile-$shape.log" >>"$written"
        timeout --kill-after=5 "$left" "$python" -m benchmarks.attention $fast --rounds 1 --only flex fused \
            --shapes "$shape" >"$out/compile-$shape.log" 2>&1 &
    done
    for pid in "${pids[@]}"; do
        wait "$pid"
        code=$?
        ((code <= worst)) || worst=$code
    done
    wait # for those that compile, whatever becomes of them
    grep -hE '^(right|WRONG)' "$out"/check-*.log | cut -c1-150
    ended correctness $((SECONDS - start)) "$worst" "$left"
}

fast="--device cuda --dtype bfloat16"
shapes="wt103-base nvidia-base nvidia-large long memory"
# shellcheck disable=SC2086 # $fast and $shapes are several words
{
    correctness 105
    part 125 attention benchmarks.attention $fast --rounds 5 --shapes $shapes \
        --only original dense blockwise fused sdpa sdpa_full flex
    part 65 step-base benchmarks.step $fast --shapes nvidia-base --batch_sizes 32 64 128 --pairs 5 --steps 10
    part 60 step-large benchmarks.step $fast --shapes nvidia-large --batch_sizes 32 64 128 --pairs 3 --steps 5
    part 50 evaluation benchmarks.evaluation $fast --shapes wt103-base --batch_sizes 1 16 32 --segments 50 --pairs 5
    part 35 profile benchmarks.profile_step $fast --shapes nvidia-base nvidia-large --steps 3
    part 55 growth benchmarks.evaluation $fast --shapes wt103-base --mem_lens 640 1600 6400 25600 100000 \
        --segments 10 --pairs 3
    part 45 compiled-base benchmarks.step $fast --compile --shapes nvidia-base --batch_sizes 64 --pairs 5 --steps 10
    part 20 generation benchmarks.generation $fast --tokens 50 --pairs 5
    part 15 evaluation-f32 benchmarks.evaluation --device cuda --shapes wt103-base --segments 50 --pairs 5
    # what the others left over; 10 s are kept for a part that has to be killed and for the table
    part 0 evaluation-nvidia benchmarks.evaluation $fast --shapes nvidia-base nvidia-large --batch_sizes 1 16 \
        --segments 20 --pairs 3
    part 0 attention-64k benchmarks.attention $fast --rounds 5 --shapes memory-64k --only original blockwise fused sdpa
    part 0 compiled-large benchmarks.step $fast --compile --shapes nvidia-large --batch_sizes 64 --pairs 3 --steps 5
}

{
    echo
    echo "==== all that was measured"
    for log in "$out"/*.log; do
        [[ $(basename "$log") == check-* || $(basename "$log") == compile-* ]] && continue
        echo "-- $(basename "$log" .log)"
        grep -E 'MiB|left out|failed:|ms a step|%' "$log" | cut -c1-170
    done
    echo "==== parts"
    printf '%s\n' "${summary[@]}"
    grep -H 'no CUDA graph' "$out"/*.log | sort -u
    right=$(cat "$out"/check-*.log | grep -c '^right')
    wrong=$(cat "$out"/check-*.log | grep -c '^WRONG')
    echo "WRONG: $wrong of $((right + wrong)) checks"
    echo "$((SECONDS - begin)) s in all; results in $out"
} | tee "$out/table.txt"

tar -czf "$out.tar.gz" -C "$(dirname "$out")" "$(basename "$out")" && echo "packed into $out.tar.gz"
((n_failed == 0))
