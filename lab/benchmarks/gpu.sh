#!/usr/bin/env bash
# On a machine with a GPU: whether everything is right there, then every figure, in four parts of under ten minutes.
#
#     bash lab/benchmarks/gpu.sh PART [FOLDER]      1: the training step in each variant, its kernels, correctness
#                                                   2: attention beside other attentions; the head
#                                                   3: larger models, growth, generation
#                                                   4: train NVIDIA's base for eight minutes, and evaluate it
#     bash lab/benchmarks/gpu.sh --tests [FLAGS]    the tests instead, on as many cores as there are; needs pytest-xdist.
#                                                   They are those of a CPU: tests/conftest.py hides the GPU from them
#
# FOLDER (lab/benchmarks/results/gpu) gets part-N.txt, a table, and part-N.tar.gz, results as JSON and logs, both anew after
# each benchmark, so that a run that is killed leaves what it has measured; and caches.tar.gz, the kernels that Triton
# and Inductor have compiled, with which the next run begins. Benchmarks stand in the order of what they are worth, each
# with its share of the time; what one leaves over goes to those after it. One that fails, or is stopped when its time is
# up, keeps what it has measured and does not stop the others. The exit status is 1 if a check is WRONG or one failed.
#
# PYTHON names the interpreter, SECONDS_IN_ALL the limit of a part [585], DATA the folder of the text that part 4 trains
# on [data/wikitext-103]; train.txt may be in parts that xz has compressed. ORIGINAL names a checkout of
# kimiyoung/transformer-xl, which part 1 then times in the same run. DEVICE=cpu tries everything with tiny models
# without a GPU.
set -uo pipefail

called_from=$PWD
CDPATH='' cd "$(dirname "$0")/../.." || exit
python=${PYTHON:-python3}

if [[ ${1:-} == --tests ]]; then
    shift
    # its warnings are errors here, and that of pytest-benchmark beside xdist is one
    exec "$python" -m pytest -q -n "$(nproc)" -p no:benchmark tests "$@"
fi

part=${1:-}
if [[ ! $part =~ ^[1-4]$ ]]; then
    sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
out=${2:-$PWD/lab/benchmarks/results/gpu}
[[ $out == /* ]] || out=$called_from/$out
in_all=${SECONDS_IN_ALL:-585}
if [[ ! $in_all =~ ^[1-9][0-9]{0,5}$ ]]; then
    echo "lab/benchmarks/gpu.sh: SECONDS_IN_ALL=$in_all: must be a number of seconds" >&2
    exit 2
fi
device=${DEVICE:-cuda}
begin=$SECONDS
due=0 # seconds after the beginning at which the benchmarks so far must be done
n_failed=0
summary=()
mkdir -p "$out" || exit
work=$(mktemp -d) || exit
trap 'rm -rf "$work"' EXIT
here=$work/part-$part # what goes into the archive
mkdir "$here"
export TRITON_CACHE_DIR=$work/caches/triton TORCHINDUCTOR_CACHE_DIR=$work/caches/inductor
[[ ! -f $out/caches.tar.gz ]] || tar -xzf "$out/caches.tar.gz" -C "$work" || rm -rf "$work/caches"

# put FILE NAME: into the folder, whole or not at all
put() {
    cp "$1" "$out/.$2.tmp" && mv "$out/.$2.tmp" "$out/$2"
}

# take_home: the table and the archive as they are now
take_home() {
    {
        for log in "$here"/*.log; do
            [[ -e $log && $(basename "$log") != check-* && $(basename "$log") != compile-* ]] || continue
            echo "-- $(basename "$log" .log)"
            grep -E 'MiB|left out|failed:|ms a step|times flash|%|^\| ' "$log" | cut -c1-170
        done
        echo "==== benchmarks"
        printf '%s\n' "${summary[@]}"
        grep -H 'no CUDA graph' "$here"/*.log 2>/dev/null | sort -u
        local right wrong
        right=$(cat "$here"/check-*.log 2>/dev/null | grep -c '^right')
        wrong=$(cat "$here"/check-*.log 2>/dev/null | grep -c '^WRONG')
        echo "WRONG: $wrong of $((right + wrong)) checks"
        echo "$((SECONDS - begin)) s so far"
    } >"$here/table.txt"
    put "$here/table.txt" "part-$part.txt"
    tar -czf "$work/part.tar.gz" -C "$work" "part-$part" && put "$work/part.tar.gz" "part-$part.tar.gz"
}

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
    take_home
}

# bench SECONDS NAME MODULE [FLAGS]: one benchmark, its output in NAME.log and its results in NAME.json
bench() {
    local name=$2 module=$3 start=$SECONDS left code note=""
    planned "$1"
    shift 3
    if ((left < 10 * in_all / 585 || left < 1)); then
        summary+=("$(printf '%-18s         left out: no time' "$name")")
        return
    fi
    echo "== $name, at most $left s: python -m $module $*"
    timeout --kill-after=5 "$left" "$python" -m "$module" "$@" --json "$here/$name.json" >"$here/$name.log" 2>&1
    code=$?
    ((code == 0)) || tail -n 3 "$here/$name.log"
    ! grep -q 'failed:' "$here/$name.log" || note="a program failed"
    ended "$name" $((SECONDS - start)) "$code" "$left" "$note"
}

# variant SECONDS NAME [FLAGS]: a training step
variant() {
    local seconds=$1 name=$2
    shift 2
    bench "$seconds" "$name" lab.benchmarks.gpu_step "${exact[@]}" "$@"
}

# Kernels are compiled on one core, and there are many: the checks are shared among processes, beside which others
# compile what is timed later. Nothing is timed meanwhile.
correctness() {
    local start=$SECONDS left code worst=0 shares pids=() pid shape i
    planned "$1"
    ((left >= 1)) || left=1
    shares=$(env -u OMP_NUM_THREADS nproc) # which it would print
    shares=$((shares > 12 ? 12 : shares))
    echo "== correctness, at most $left s"
    for ((i = 0; i < shares; i++)); do
        timeout --kill-after=5 "$left" "$python" -m lab.benchmarks.gpu_check --device "$device" --share "$i" "$shares" \
            "${only[@]}" --json "$here/check-$i.json" >"$here/check-$i.log" 2>&1 &
        pids+=($!)
    done
    for shape in "${compiled[@]}"; do
        timeout --kill-after=5 "$left" "$python" -m lab.benchmarks.attention "${fast[@]}" --rounds 1 --only flex fused \
            --shapes "$shape" >"$here/compile-$shape.log" 2>&1 &
    done
    for pid in "${pids[@]}"; do
        wait "$pid"
        code=$?
        ((code <= worst)) || worst=$code
    done
    wait # for those that compile, whatever becomes of them
    grep -hE '^(right|WRONG)' "$here"/check-*.log | cut -c1-150
    ended correctness $((SECONDS - start)) "$worst" "$left"
}

fast=(--device cuda --dtype bfloat16) exact=(--device cuda) only=() compiled=(wt103-base nvidia-base nvidia-large)
base=(--shapes nvidia-base) large=(--shapes nvidia-large) both=(--shapes nvidia-base nvidia-large)
wt103=(--shapes wt103-base) attended=(--shapes wt103-base nvidia-base nvidia-large long memory) long=(--shapes memory-64k) heads=()
batches=(--batch_sizes 32 128) streams=(--batch_sizes 1 32) growth=(640 1600 6400 25600 100000)
pairs=(--pairs 5) few=(--pairs 3) steps=10 tokens=50 updates=(--updates 100) best=(--compile --cuda_graph)
b32=(--batch 32) b256=(--batch 256 --steps 4) b16=(--shape nvidia-large --batch 16 --steps 4) one=(--batch_sizes 32)
flex=(--shapes nvidia-base nvidia-large) original=()
[[ -z ${ORIGINAL:-} ]] || original=(--original "$ORIGINAL")
text=(--data "${DATA:-data/wikitext-103}") curve=()
if [[ $device == cpu ]]; then # the same programs, with models of no weight
    fast=(--device cpu) exact=(--device cpu) only=(--only "as on a CPU: default" step) compiled=()
    base=(--shapes tiny) large=(--shapes tiny) both=(--shapes tiny) wt103=(--shapes tiny) attended=(--shapes tiny)
    long=(--shapes tiny) heads=(--shapes tiny) flex=(--shapes tiny) one=(--batch_sizes 2)
    b32=(--shape tiny --batch 2 --dtype float32 --steps 1 --warm_up 1) b256=("${b32[@]}") b16=("${b32[@]}")
    batches=(--batch_sizes 2) streams=(--batch_sizes 1) growth=(8 16) pairs=(--pairs 1) few=(--pairs 1) steps=1 tokens=2 updates=(--first 1 --updates 1) best=()
    curve=(--tiny)
fi

case $part in
1)
    variant 35 check-graph --check
    variant 30 eager-32 "${b32[@]}" --profile
    variant 60 compiled-256 "${b256[@]}" --compile --profile
    variant 35 graph-32 "${b32[@]}" --cuda_graph --profile
    variant 55 compiled-graph-32 "${b32[@]}" --compile --cuda_graph --profile
    bench 60 micro lab.benchmarks.gpu_micro "${exact[@]}" --seconds 55
    bench 50 flex lab.benchmarks.attention "${fast[@]}" --rounds 5 "${flex[@]}" --only dense fused flex
    correctness 75
    variant 45 compiled-graph-256 "${b256[@]}" --compile --cuda_graph --profile
    bench 45 beside lab.benchmarks.step "${fast[@]}" "${base[@]}" "${one[@]}" "${few[@]}" --steps $steps "${best[@]}" "${original[@]}"
    variant 25 graph-32-muon "${b32[@]}" --cuda_graph --optim muon --profile
    variant 20 graph-32-keep64 "${b32[@]}" --cuda_graph --keep_mib 64
    bench 30 evaluation lab.benchmarks.evaluation "${fast[@]}" "${wt103[@]}" "${streams[@]}" --segments 50 "${few[@]}"
    variant 20 compiled-large-16 "${b16[@]}" --compile --profile
    ;;
2)
    bench 185 attention lab.benchmarks.attention "${fast[@]}" --rounds 5 "${attended[@]}" \
        --only original dense fused fused_three_passes fused_kept_whole sdpa sdpa_full flex
    bench 30 head lab.benchmarks.head "${fast[@]}" --rounds 5 "${heads[@]}"
    bench 40 attention-64k lab.benchmarks.attention "${fast[@]}" --rounds 5 "${long[@]}" --only original fused sdpa
    ;;
3)
    bench 110 step-large lab.benchmarks.step "${fast[@]}" "${large[@]}" "${batches[@]}" "${few[@]}" --steps $steps
    bench 60 step-wt103 lab.benchmarks.step "${fast[@]}" "${wt103[@]}" "${batches[@]}" "${few[@]}" --steps $steps
    bench 70 growth lab.benchmarks.evaluation "${fast[@]}" "${wt103[@]}" --mem_lens "${growth[@]}" --segments 10 "${few[@]}"
    bench 30 generation lab.benchmarks.generation "${fast[@]}" "${wt103[@]}" --tokens $tokens "${pairs[@]}"
    bench 80 step-large-compiled lab.benchmarks.step "${fast[@]}" --compile "${large[@]}" "${batches[@]}" "${few[@]}" --steps $steps
    bench 40 evaluation-large lab.benchmarks.evaluation "${fast[@]}" "${both[@]}" "${streams[@]}" --segments 20 "${few[@]}"
    bench 25 graph lab.benchmarks.graph "${exact[@]}" "${updates[@]}"
    bench 30 evaluation-f32 lab.benchmarks.evaluation "${exact[@]}" "${wt103[@]}" --segments 50 "${pairs[@]}"
    ;;
4)
    bench 575 train-nv-base lab.benchmarks.training_curve "${text[@]}" --minutes "$((in_all * 8 / 585))" "${curve[@]}"
    ;;
esac

if [[ -d $work/caches ]]; then
    tar -czf "$work/caches.tar.gz" -C "$work" caches && put "$work/caches.tar.gz" caches.tar.gz
fi
take_home
echo
cat "$out/part-$part.txt"
echo "results in $out/part-$part.tar.gz"
((n_failed == 0))
