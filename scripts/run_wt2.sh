#!/usr/bin/env bash
# shellcheck disable=SC2034 # launch.sh reads what is set here
# WikiText-2: train, evaluate and generate.
set -euo pipefail

script=scripts/run_wt2.sh name=wt2
# shellcheck source=scripts/launch.sh disable=SC1091 # without -x it is not followed
source "$(dirname "$0")/launch.sh"

text_is=" (train.txt, valid.txt, test.txt)"
data=(--data "$root/data/wikitext-2" --dataset wt2)
sizes=(base)

# base: ours, as the 2019 code has no script for WikiText-2: the small model of docs/results-small.md, 6.9M parameters
train_base=(--cutoffs 3000 12000 --div_val 2 --n_layer 4 --d_model 256 --n_head 8 --d_head 32 --d_inner 1024
    --dropout 0.1 --lr 0.001 --warmup_step 200 --max_step 4000 --tgt_len 64 --mem_len 128 --eval_tgt_len 64
    --batch_size 16 --eval_interval 500)
eval_base=(--tgt_len 64 --mem_len 256 --clamp_len 192 --split test)
generate_base=(--clamp_len 192)

txl_run "$@"
