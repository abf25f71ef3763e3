"""Ours, timed by `peers`: evaluation and generation of the wt103-base shape with weights drawn at random."""

import sys
import time

import torch

from txl import Context, ModelConfig, TransformerXL

SHAPE = {"n_token": 267735, "n_layer": 16, "n_head": 10, "d_head": 41, "d_model": 410, "d_inner": 2100}
CUTOFFS = {"cutoffs": (20000, 40000, 200000), "tie_projs": (False, True, True, True)}
MEM_LEN = 640


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    model = TransformerXL(ModelConfig(**SHAPE, **CUTOFFS)).eval()
    token_BT = torch.randint(0, 20000, (1, 64 * 12 + 1))
    evaluating = Context(tgt_len=64, mem_len=MEM_LEN, clamp_len=400, same_length=True)
    memory = model.fresh_memory(1)
    for begin in range(0, 64 * 11, 64):
        _, memory = model(token_BT[:, begin : begin + 64], memory, evaluating)
    print(f"txl, torch {torch.__version__}, {torch.get_num_threads()} threads", flush=True)
    for task in map(str.strip, sys.stdin):
        start = time.perf_counter()
        if task == "evaluate":
            kept = memory
            for begin in range(0, 256, 64):
                piece_BT = token_BT[:, begin : begin + 65]
                nll_BT, kept = model.nll(piece_BT[:, :-1], piece_BT[:, 1:], kept, evaluating)
                float(nll_BT.sum())
        else:
            kept, token = memory, token_BT[:, :1]
            for _ in range(8):
                hidden_BTD, kept = model(token, kept, evaluating)
                token = torch.multinomial(model.log_prob(hidden_BTD[:, -1]).exp(), 1)
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
