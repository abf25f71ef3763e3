#!/usr/bin/env bash
# shellcheck disable=SC2034 # launch.sh reads what is set here
# text8: train, evaluate and generate, character by character.
set -euo pipefail

script=scripts/run_text8.sh name=text8
# shellcheck source=scripts/launch.sh disable=SC1091 # without -x it is not followed
source "$(dirname "$0")/launch.sh"

text_is=" (text8 or text8.zip)"
data=(--data "$root/data/text8" --dataset text8)
sizes=(base large)

# base, large: the hyper-parameters of kimiyoung/transformer-xl's run_text8_base.sh and run_text8_large.sh
train_base=(--n_layer 12 --d_model 512 --n_head 8 --d_head 64 --d_inner 2048 --dropout 0.1 --dropatt 0.0 --optim adam
    --lr 0.00025 --warmup_step 0 --max_step 400000 --tgt_len 512 --mem_len 512 --eval_tgt_len 128 --batch_size 22)
train_large=(--n_layer 24 --d_model 1024 --n_head 8 --d_head 128 --d_inner 3072 --dropout 0.15 --dropatt 0.15
    --optim adam --lr 0.00025 --max_step 400000 --tgt_len 768 --mem_len 768 --eval_tgt_len 128
    --batch_size 64)
eval_base=(--tgt_len 80 --mem_len 2100 --clamp_len 820 --same_length --split test)
eval_large=(--tgt_len 128 --mem_len 3800 --clamp_len 1000 --same_length --split test)
generate_base=(--mem_len 2100 --clamp_len 820 --same_length)
generate_large=(--mem_len 3800 --clamp_len 1000 --same_length)

txl_run "$@"
