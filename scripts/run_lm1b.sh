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

txl_run "$@"
