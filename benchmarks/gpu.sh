#!/usr/bin/env bash
# On a machine with a GPU: whether the fast paths are right there, then every figure, in under ten minutes.
#
#     bash benchmarks/gpu.sh [FOLDER]           results as JSON and logs, in benchmarks/results/gpu unless named
#     bash benchmarks/gpu.sh --tests [FLAGS]    the tests instead, on as many cores as there are; needs pytest-xdist
#
# A part that fails, or takes longer than its limit, does not stop those after it; the table at the end says so. Parts
# stand in the order of what they are worth: those that no time is left for are named and left out. PYTHON names the
# interpreter, SECONDS_IN_ALL the limit of it all [585].
set -uo pipefail

cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

if [[ ${1:-} == --tests ]]; then
    shift
    # its warnings are errors here, and that of pytest-benchmark beside xdist is one
    exec "$python" -m pytest -q -n "$(nproc)" -p no:benchmark tests "$@"
fi

out=${1:-benchmarks/results/gpu}
limit_of_all=${SECONDS_IN_ALL:-585}
begin=$SECONDS
mkdir -p "$out"
rm -f "$out"/*.log "$out"/*.json
summary=()

# part LIMIT NAME MODULE [FLAGS]: one benchmark, its output in NAME.log and its results in NAME.json
part() {
    local limit=$1 name=$2 module=$3 start=$SECONDS left status
    shift 3
    left=$((limit_of_all - (SECONDS - begin)))
    if ((left < 15)); then
        summary+=("$(printf '%-18s left out: no time' "$name")")
        return
    fi
    ((limit < left)) || limit=$left
    echo "== $name: python -m $module $*"
    timeout --kill-after=5 "$limit" "$python" -m "$module" "$@" --json "$out/$name.json" >"$out/$name.log" 2>&1
    status=$?
    ((status == 0)) || tail -n 3 "$out/$name.log"
    ((status == 124 || status == 137)) && status="$status, stopped after $limit s"
    ((status == 0)) && grep -q 'failed:' "$out/$name.log" && status="0, but a program failed"
    summary+=("$(printf '%-18s status %s, %d s' "$name" "$status" $((SECONDS - start)))")
}

# every check's kernels are compiled on one core: in eight processes; nothing is timed meanwhile
shares=8
start=$SECONDS
echo "== correctness"
for ((i = 0; i < shares; i++)); do
    timeout --kill-after=5 120 "$python" -m benchmarks.gpu_check --share "$i" "$shares" \
        --json "$out/check-$i.json" >"$out/check-$i.log" 2>&1 &
done
failed=0
for job in $(jobs -p); do
    wait "$job" || ((failed += 1))
done
summary+=("$(printf '%-18s %d of %d shares failed, %d s' correctness "$failed" "$shares" $((SECONDS - start)))")
grep -hE '^(right|WRONG)' "$out"/check-*.log | cut -c1-150

fast="--device cuda --dtype bfloat16"
# shellcheck disable=SC2086 # $fast is several words
{
    part 100 attention benchmarks.attention $fast --rounds 5 \
        --only original dense blockwise fused sdpa sdpa_full
    part 100 step-base benchmarks.step $fast --shapes nvidia-base --batch_sizes 32 64 128 --pairs 5 --steps 10
    part 100 step-large benchmarks.step $fast --shapes nvidia-large --batch_sizes 32 64 128 --pairs 3 --steps 5
    part 60 evaluation benchmarks.evaluation $fast --shapes wt103-base --batch_sizes 1 16 32 --segments 50 --pairs 5
    part 40 evaluation-f32 benchmarks.evaluation --device cuda --shapes wt103-base --segments 50 --pairs 5
    part 60 profile benchmarks.profile_step $fast --shapes nvidia-base nvidia-large --steps 3
    part 90 compiled-base benchmarks.step $fast --compile --shapes nvidia-base --batch_sizes 64 --pairs 5 --steps 10
    part 60 growth benchmarks.evaluation $fast --shapes wt103-base --mem_lens 640 1600 6400 25600 100000 \
        --segments 10 --pairs 3
    part 40 generation benchmarks.generation $fast --tokens 50 --pairs 5
    part 90 flex benchmarks.attention $fast --rounds 5 --only flex sdpa fused --shapes nvidia-base nvidia-large long
    part 90 compiled-large benchmarks.step $fast --compile --shapes nvidia-large --batch_sizes 64 --pairs 3 --steps 5
    part 60 evaluation-nvidia benchmarks.evaluation $fast --shapes nvidia-base nvidia-large --batch_sizes 1 16 \
        --segments 20 --pairs 3
}

echo
echo "==== all that was measured"
for log in "$out"/*.log; do
    [[ $(basename "$log") == check-* ]] && continue
    echo "-- $(basename "$log" .log)"
    grep -E 'MiB|left out|failed|ms a step|%' "$log" | cut -c1-170
done
echo "==== parts"
printf '%s\n' "${summary[@]}"
echo "WRONG: $(cat "$out"/check-*.log | grep -c '^WRONG') of $(cat "$out"/check-*.log | grep -cE '^(right|WRONG)') checks"
echo "$((SECONDS - begin)) s in all; results in $out"
