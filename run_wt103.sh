#!/usr/bin/env bash
# shellcheck disable=SC2034,SC2154 # launch.sh reads what is set here, and sets root and python
# WikiText-103: train, evaluate and generate; `demo` does all three on Python's bundled documentation, and draws a page.
set -euo pipefail

script=run_wt103.sh name=wt103
# shellcheck source=scripts/launch.sh disable=SC1091 # without -x it is not followed
source "$(dirname "$0")/scripts/launch.sh"

first_line="run_wt103.sh demo                     [flags of train.py]
       "
text_is=" (train.txt, valid.txt, test.txt)"
data=(--data "$root/data/wikitext-103" --dataset wt103)
sizes=(base base_modern large nv_base nv_large)

# base, large: the hyper-parameters of kimiyoung/transformer-xl's run_wt103_base.sh and run_wt103_large.sh
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

# base_modern: base with the recipe that docs/results.md#recipes found best, for half its tokens; not trained at this size
train_base_modern=(--adaptive --n_layer 16 --d_model 410 --n_head 10 --d_head 41 --d_inner 1400 --activation swiglu
    --pre_lnorm --dropout 0.1 --dropatt 0.0 --optim muon --lr 0.005 --weight_decay 0.1 --warmup_step 8000
    --max_step 100000 --tgt_len 150 --mem_len 150 --eval_tgt_len 150 --batch_size 60)
eval_base_modern=("${eval_base[@]}")
generate_base_modern=("${generate_base[@]}")

# nv_base, nv_large: those of NVIDIA DeepLearningExamples' wt103_base.yaml and wt103_large.yaml
train_nv_base=(--adaptive --div_val 1 --n_layer 16 --d_model 512 --n_head 8 --d_head 64 --d_inner 2048 --dropout 0.1
    --dropatt 0.0 --optim lamb --lr 0.01 --eta_min 0.001 --warmup_step 1000 --max_step 40000 --roll --tgt_len 192
    --mem_len 192 --eval_tgt_len 192 --batch_size 256 --eval_interval 5000 --log_interval 10)
train_nv_large=(--adaptive --div_val 4 --n_layer 18 --d_model 1024 --n_head 16 --d_head 64 --d_inner 4096 --dropout 0.2
    --dropatt 0.2 --init_std 0.005 --optim lamb --lr 0.01 --eta_min 0.0001 --warmup_step 16000 --max_step 100000 --roll
    --tgt_len 384 --mem_len 384 --eval_tgt_len 128 --batch_size 128 --eval_interval 5000 --log_interval 100)
eval_nv_base=("${eval_base[@]}")
eval_nv_large=("${eval_large[@]}")
generate_nv_base=("${generate_base[@]}")
generate_nv_large=("${generate_large[@]}")

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
    "$python" "$root/train.py" "${text[@]}" --work_dir "$run" "${own[@]}" \
        --n_layer 4 --d_model 128 --n_head 4 --d_head 32 --d_inner 512 --dropout 0.15 \
        --tgt_len 32 --mem_len 128 --batch_size 16 --lr 0.001 --warmup_step 100 --max_step 2500 \
        --eval_tgt_len 32 --eval_interval 500 --log_interval 100 "$@"
    echo
    "$python" "$root/generate.py" "--work_dir=$run" --prompt "This module provides" --length 120 --finish_line \
        --top_p 0.8 --no_unk
    echo
    # as eval.py --borders both, and a page of it
    PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} "$python" -m txl report "--runs=$run" --split test --mem_len 0 8 32 128
}

if [ "${1:-}" != demo ]; then
    txl_run "$@"
fi
shift
for word in "$@"; do
    [[ $word != --help && $word != -h ]] || usage 0 2>&1
done
txl_python "$root" requirements.txt
demo "$@"
