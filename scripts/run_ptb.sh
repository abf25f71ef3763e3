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

txl_run "$@"
