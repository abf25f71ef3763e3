#!/usr/bin/env bash
# shellcheck disable=SC2034 # launch.sh reads what is set here
# One Billion Word: train, evaluate and generate.
set -euo pipefail

script=scripts/run_lm1b.sh name=lm1b
# shellcheck source=scripts/launch.sh disable=SC1091 # without -x it is not followed
source "$(dirname "$0")/launch.sh"

text_is=" (as getdata.sh of the 2019 code leaves it)"
data=(--data "$root/data/one-billion-words" --dataset lm1b)
sizes=(base large)

# base, large: the hyper-parameters of kimiyoung/transformer-xl's run_lm1b_base.sh and run_lm1b_large.sh
train_base=(--adaptive --div_val 4 --n_layer 18 --d_model 1024 --n_head 8 --d_head 128 --d_inner 4096 --dropout 0.0
    --dropatt 0.0 --optim adam --lr 0.00025 --warmup_step 20000 --max_step 500000 --tgt_len 32 --mem_len 32
    --eval_tgt_len 32 --batch_size 224)
train_large=(--adaptive --div_val 4 --n_layer 24 --d_model 1280 --n_head 16 --d_head 80 --d_inner 8192 --dropout 0.05
    --dropatt 0.05 --optim adam --lr 0.00025 --warmup_step 30000 --max_step 1200000 --tgt_len 32 --mem_len 32
    --eval_tgt_len 32 --batch_size 512)
eval_base=(--batch_size 64 --tgt_len 32 --mem_len 128 --same_length --split test)
eval_large=(--batch_size 8 --tgt_len 32 --mem_len 128 --same_length --split test)
generate_base=(--mem_len 128 --same_length)
generate_large=(--mem_len 128 --same_length)

txl_run "$@"
