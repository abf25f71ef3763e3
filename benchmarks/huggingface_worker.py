"""Hugging Face's TransfoXL (transformers 4.35.2), timed by `peers`: the same shape, lengths and tasks as ours."""

import sys
import time
import warnings

import torch
from transformers import TransfoXLConfig, TransfoXLLMHeadModel, __version__

MEM_LEN = 640


@torch.inference_mode()
def main() -> None:
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    config = TransfoXLConfig(
        vocab_size=267735,
        cutoffs=[20000, 40000, 200000],
        d_model=410,
        d_embed=410,
        n_head=10,
        d_head=41,
        d_inner=2100,
        div_val=1,
        n_layer=16,
        mem_len=MEM_LEN,
        clamp_len=400,
        same_length=True,
        untie_r=False,
    )
    model = TransfoXLLMHeadModel(config).eval()
    token_BT = torch.randint(0, 20000, (1, 64 * 12 + 1))
    mems = None
    for begin in range(0, 64 * 11, 64):
        mems = model.transformer(token_BT[:, begin : begin + 64], mems=mems).mems
    print(f"transformers {__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads", flush=True)
    for task in map(str.strip, sys.stdin):
        start = time.perf_counter()
        if task == "evaluate":
            kept = mems
            for begin in range(0, 256, 64):
                piece = token_BT[:, begin : begin + 64]  # labels are shifted inside: one prediction fewer
                out = model(piece, mems=kept, labels=piece)
                kept = out.mems
                float(out.losses.sum())
        else:
            kept, token = mems, token_BT[:, :1]
            for _ in range(8):
                out = model(token, mems=kept)
                kept = out.mems
                token = torch.multinomial(out.prediction_scores[:, -1].exp(), 1)
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
