#!/usr/bin/env bash
# shellcheck disable=SC2034 # launch.sh reads what is set here
# Penn Treebank: train, evaluate and generate.
set -euo pipefail

script=scripts/run_ptb.sh name=ptb
# shellcheck source=scripts/launch.sh disable=SC1091 # without -x it is not followed
source "$(dirname "$0")/launch.sh"

text_is=" (train.txt, valid.txt, test.txt)"
data=(--data "$root/data/penn" --dataset ptb)
sizes=(base)

# base: 24M parameters, as many as the paper's model. Sizes and settings are ours: the paper's were not published, and
# neither was its code for variational dropout and weight averaging, so its 54.5 is not reproduced by this
train_base=(--n_layer 14 --d_model 400 --n_head 10 --d_head 40 --d_inner 800 --dropout 0.4 --dropatt 0.2 --optim adam
    --lr 0.00035 --warmup_step 1000 --max_step 40000 --tgt_len 70 --mem_len 70 --eval_tgt_len 70 --batch_size 22
    --eval_interval 1000 --ema 0.999)
eval_base=(--tgt_len 70 --mem_len 400 --clamp_len 140 --split test)
generate_base=(--mem_len 140 --clamp_len 140)

txl_run "$@"
