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

txl_run "$@"
