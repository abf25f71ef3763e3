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

txl_run "$@"
