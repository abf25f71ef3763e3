"""The same pretrained decoder through transformers, with its cache."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from lab.benchmarks.workers.serve import drawn, serve


def started(how: dict[str, Any]) -> tuple[Any, Any]:
    """The model, and the cache of a text of mem_len tokens."""
    from transformers import AutoModelForCausalLM

    dtype = getattr(torch, how["dtype"])
    model = AutoModelForCausalLM.from_pretrained(how["folder"], dtype=dtype).eval()
    model.to(how["device"])
    cache = None
    text_1T = drawn(model.config.vocab_size, how["mem_len"]).to(model.device)
    with torch.inference_mode():
        for part_1T in text_1T.split(how["tgt_len"], dim=1):
            out = model(part_1T, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = out.past_key_values
    return model, cache


def write(how: dict[str, Any]) -> Iterator[object]:
    """A token at a time, the likeliest; the cache grows by the few that are written."""
    model, cache = started(how)
    next_11 = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    while True:
        with torch.inference_mode():
            out = model(next_11, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        next_11 = out.logits.argmax(-1)
        yield next_11


def score(how: dict[str, Any]) -> Iterator[object]:
    """A segment at a time, each after the same text."""
    model, cache = started(how)
    token_1T = drawn(model.config.vocab_size, how["tgt_len"]).to(model.device)
    while True:
        with torch.inference_mode():
            out = model(token_1T, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            cache.crop(-how["tgt_len"])
            logit_TV = out.logits[0].float()
            yield F.cross_entropy(logit_TV, token_1T[0], reduction="none")


def main() -> None:
    how = json.loads(sys.argv[1])
    tasks = {"generate": lambda: write(how), "score": lambda: score(how)}
    serve("transformers", tasks, torch.device(how["device"]))


if __name__ == "__main__":
    main()
