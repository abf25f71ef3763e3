#!/usr/bin/env bash
# Train, evaluate and generate; `demo` does all three on Python's bundled documentation.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
source "$here/scripts/environment.sh"

usage() {
    cat >&2 <<'USAGE'
usage: run_wt103.sh demo                               [flags of train.py]
       run_wt103.sh train|eval|generate  base|large    [flags of train.py|eval.py|generate.py]

Flags at the end override the published configurations. The text is read from data/wikitext-103 (train.txt, valid.txt,
test.txt; another folder with --data), the run is saved in runs/wt103_base or runs/wt103_large.

train uses all GPUs of the machine, or NPROC processes. On several hosts, start the same command on each with
  NNODES (how many hosts)   NODE_RANK (0 on the first)   MASTER_ADDR (the first one's name)   MASTER_PORT (29500)
and a run folder that all of them share. torchrun restarts crashed processes up to MAX_RESTARTS times (3).
USAGE
    exit "${1:-2}"
}

refuse() {
    echo "run_wt103.sh: $*" >&2
    exit 2
}

# number NAME LEAST: the variable, if set, must be a whole number of at least LEAST
number() {
    local value=${!1:-}
    [[ -z $value || ($value =~ ^[0-9]{1,6}$ && 10#$value -ge $2) ]] || refuse "$1=$value: must be a number, at least $2"
}

# the hyper-parameters of kimiyoung/transformer-xl's run_wt103_base.sh and run_wt103_large.sh
data=(--data "$here/data/wikitext-103" --dataset wt103)
train_base=(--adaptive --n_layer 16 --d_model 410 --n_head 10 --d_head 41 --d_inner 2100 --dropout 0.1 --dropatt 0.0
    --optim adam --lr 0.00025 --warmup_step 0 --max_step 200000 --tgt_len 150 --mem_len 150 --eval_tgt_len 150
    --batch_size 60)
train_large=(--adaptive --div_val 4 --n_layer 18 --d_model 1024 --n_head 16 --d_head 64 --d_inner 4096 --dropout 0.2
    --dropatt 0.2 --optim adam --lr 0.00025 --warmup_step 16000 --max_step 4000000 --tgt_len 384 --mem_len 384
    --eval_tgt_len 128 --batch_size 128)
eval_base=(--tgt_len 64 --mem_len 640 --clamp_len 400 --same_length --split test)
eval_large=(--tgt_len 128 --mem_len 1600 --clamp_len 1000 --same_length --split test)
generate_base=(--mem_len 640 --clamp_len 400 --same_length)
generate_large=(--mem_len 1600 --clamp_len 1000 --same_length)

demo() {
    local run=$here/runs/demo own=(--overwrite) word next=false
    for word in "$@"; do # the last --work_dir counts, as in train.py
        case $next$word in
        true*) run=$word own=() ;;
        false--work_dir=* | false--work-dir=*) run=${word#*=} own=() ;;
        esac
        [[ $word = --work_dir || $word = --work-dir ]] && next=true || next=false
    done
    local text=(--data "$here/data/pydoc" --dataset pydoc)
    "$python" "$here/train.py" "${text[@]}" --work_dir "$run" "${own[@]}" \
        --n_layer 4 --d_model 128 --n_head 4 --d_head 32 --d_inner 512 --dropout 0.15 \
        --tgt_len 32 --mem_len 128 --batch_size 16 --lr 0.001 --warmup_step 100 --max_step 2500 \
        --eval_tgt_len 32 --eval_interval 500 --log_interval 100 "$@"
    echo
    "$python" "$here/eval.py" --work_dir "$run" --split test --tgt_len 16 --mem_len 0 8 32 128
    echo
    "$python" "$here/generate.py" --work_dir "$run" --prompt "This module provides" --length 120 --finish_line \
        --top_p 0.8 --no_unk
}

# exec the training, in one process or in several under torchrun
launch() {
    number NNODES 1
    number NPROC 1
    number NODE_RANK 0
    number MASTER_PORT 1
    number MAX_RESTARTS 0
    local nnodes=${NNODES:-1} nproc=${NPROC:-}
    # torchrun kills processes 30 s after a signal, too soon for a large checkpoint (from PyTorch 2.12 on)
    export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-300}
    [ -n "$nproc" ] || nproc=$("$python" -c 'import torch; print(torch.cuda.device_count())')
    [ "$nproc" -ge 1 ] || nproc=1
    if [ "$nnodes" -eq 1 ] && [ "$nproc" -eq 1 ]; then
        exec "$python" "$@"
    fi
    local rendezvous=(--standalone)
    if [ "$nnodes" -gt 1 ]; then
        local is_host=false
        [ -n "${NODE_RANK:-}" ] || refuse "NODE_RANK: NNODES is set, so it must say which host this is, 0 on the first"
        [ -n "${MASTER_ADDR:-}" ] || refuse "MASTER_ADDR: NNODES is set, so it must name the first host"
        [ "$NODE_RANK" -lt "$nnodes" ] || refuse "NODE_RANK=$NODE_RANK: hosts are counted from 0 to $((nnodes - 1))"
        [ "$NODE_RANK" -ne 0 ] || is_host=true
        rendezvous=(--nnodes "$nnodes" --rdzv_backend c10d --rdzv_id "${RUN_ID:-txl}" --rdzv_conf "is_host=$is_host"
            --rdzv_endpoint "$MASTER_ADDR:${MASTER_PORT:-29500}")
    fi
    exec "$python" -m torch.distributed.run "${rendezvous[@]}" --nproc_per_node "$nproc" \
        --max_restarts "${MAX_RESTARTS:-3}" --signals_to_handle SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 "$@"
}

what=${1:-}
size=${2:-}
case $what in
-h | --help | help) usage 0 2>&1 ;;
demo)
    shift
    for word in "$@"; do
        [[ $word != --help && $word != -h ]] || usage 0 2>&1
    done
    txl_python "$here" requirements.txt
    demo "$@"
    ;;
train | eval | generate)
    [[ $size = base || $size = large ]] || usage
    shift 2
    txl_python "$here" requirements.txt
    published=${what}_$size[@]
    flags=(--work_dir "$here/runs/wt103_$size" "${!published}")
    if [ "$what" = train ]; then
        launch "$here/train.py" "${flags[@]}" "${data[@]}" "$@"
    fi
    exec "$python" "$here/$what.py" "${flags[@]}" "$@"
    ;;
*) usage ;;
esac
