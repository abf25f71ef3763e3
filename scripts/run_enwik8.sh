#!/usr/bin/env bash
# shellcheck disable=SC2034 # launch.sh reads what is set here
# enwik8: train, evaluate and generate, byte by byte.
set -euo pipefail

script=scripts/run_enwik8.sh name=enwik8
# shellcheck source=scripts/launch.sh disable=SC1091 # without -x it is not followed
source "$(dirname "$0")/launch.sh"

text_is=" (enwik8 or enwik8.zip)"
data=(--data "$root/data/enwik8" --dataset enwik8)
sizes=(base base18 large)

# base, large: the hyper-parameters of kimiyoung/transformer-xl's run_enwik8_base.sh and run_enwik8_large.sh
train_base=(--n_layer 12 --d_model 512 --n_head 8 --d_head 64 --d_inner 2048 --dropout 0.1 --dropatt 0.0 --optim adam
    --lr 0.00025 --warmup_step 0 --max_step 400000 --tgt_len 512 --mem_len 512 --eval_tgt_len 128 --batch_size 22)
train_large=(--n_layer 24 --d_model 1024 --n_head 8 --d_head 128 --d_inner 3072 --dropout 0.15 --dropatt 0.15
    --optim adam --lr 0.00025 --warmup_step 4000 --max_step 400000 --tgt_len 768 --mem_len 768 --eval_tgt_len 128
    --batch_size 64)

# base18: the paper's 18 layers with 88M parameters, whose script was never published: sizes, dropout and lengths are
# ours, and come to 88.7M
train_base18=(--n_layer 18 --d_model 640 --n_head 8 --d_head 64 --d_inner 2560 --dropout 0.1 --dropatt 0.0 --optim adam
    --lr 0.00025 --warmup_step 4000 --max_step 400000 --tgt_len 512 --mem_len 512 --eval_tgt_len 128 --batch_size 22)

eval_base=(--tgt_len 80 --mem_len 2100 --clamp_len 820 --same_length --split test)
eval_base18=("${eval_base[@]}")
eval_large=(--tgt_len 128 --mem_len 3800 --clamp_len 1000 --same_length --split test)
generate_base=(--mem_len 2100 --clamp_len 820 --same_length)
generate_base18=("${generate_base[@]}")
generate_large=(--mem_len 3800 --clamp_len 1000 --same_length)

txl_run "$@"
