#!/usr/bin/env bash
# shellcheck disable=SC2034,SC2154 # launch.sh reads what is set here, and sets root and python
# A model worth having: trained on data/wikipedia (train.txt, valid.txt, test.txt in WikiText-103's format), measured and
# asked for samples; weights, vocabulary and card are then in runs/wikipedia_model/txl-wikipedia-16m.
# lab/scripts/write_model.sh [flags of train.py]; started again it goes on where it was stopped. NPROC=2: in two processes.
set -euo pipefail

script=lab/scripts/write_model.sh name=wikipedia
# shellcheck source=scripts/launch.sh disable=SC1091 # without -x it is not followed
source "$(dirname "$0")/../../scripts/launch.sh"
cd "$root" # so that the card has no paths of this machine
run=runs/wikipedia_model

train=(--data data/wikipedia --dataset wt103 --max_size 50000 --preset wikipedia-16m)

evaluate() { # NAME FLAG...
    [ -f "$run/$1.json" ] || "$python" eval.py --work_dir "$run" --split test --json "$run/$1.json" "${@:2}"
}

txl_python "$root" requirements.txt
(launch train.py --work_dir "$run" --resume "${train[@]}" "$@")
evaluate lengths --mem_len 0 64 192 768
evaluate clamped --mem_len 768 --clamp_len 191
evaluate cache --cache_size 2000
evaluate rms --dynamic rms
evaluate rms_and_cache --dynamic rms --cache_size 2000

printf '%s\n' "The history of the city" "The species was first described by" "The album was recorded in" \
    "He was born in" "During the war , the regiment" >"$run/prompts.txt"
"$python" generate.py --work_dir "$run" --prompts "$run/prompts.txt" --length 120 --finish_line \
    --temperature 0.8 --top_p 0.9 >"$run/samples.txt"

cat >"$run/about.md" <<'TEXT'
26,069 articles of the English Wikipedia of 2015, laid out and tokenised as WikiText-103 is, without those that overlap its
valid and test texts, which are WikiText-103's own. 78.6 million tokens, of which the model has read 30 million, once.
Wikipedia's text is under CC BY-SA 3.0, and so is the model.

It has the tone of an encyclopedia and no knowledge: for tests, teaching and length studies, not for facts. Perplexities
count words outside the vocabulary as one word, `<unk>`: compare them only with those of models of the same vocabulary.
TEXT
"$python" -m txl.convert "$run" "$run/txl-wikipedia-16m" --dtype bfloat16 \
    --licence cc-by-sa-3.0 --about "$run/about.md" --samples "$run/samples.txt" \
    --evaluations "$run"/{lengths,clamped,cache,rms,rms_and_cache}.json
