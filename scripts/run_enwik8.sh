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

txl_run "$@"
