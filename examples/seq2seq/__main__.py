"""Learn to copy or to reverse sequences of words, and show it:

python -m examples.seq2seq --task reverse
"""

import argparse

import torch

from examples.seq2seq.decoding import beam_search, greedy
from examples.seq2seq.learning import N_SPECIAL, pairs, train
from examples.seq2seq.model import Seq2Seq
from txl.config import ModelConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=["copy", "reverse"], default="copy")
    parser.add_argument("--n_word", type=int, default=20, help="words of the language")
    parser.add_argument("--max_len", type=int, default=10, help="longest sequence, in words")
    parser.add_argument("--n_update", type=int, default=1000)
    parser.add_argument("--warmup_step", type=int, default=200)
    parser.add_argument("--smoothing", type=float, default=0.1, help="share of the target given to all words alike")
    parser.add_argument("--width", type=int, default=4, help="hypotheses of the beam search")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = Seq2Seq(small_config(args.n_word), dropout=0.1)
    sizes = {"n_word": args.n_word, "batch_size": 64, "min_len": 1, "max_len": args.max_len}
    losses = train(
        model,
        pairs(args.task, seed=args.seed, **sizes),
        n_update=args.n_update,
        warmup_step=args.warmup_step,
        smoothing=args.smoothing,
    )
    for update, nats in enumerate(losses, start=1):
        if update % 100 == 0:
            print(f"| update {update:5d} | loss {nats:.3f} nats")
    model.eval()
    source_BS, target_BT = next(pairs(args.task, seed=args.seed + 1, **sizes))
    n_step = target_BT.shape[1]
    for name, found in (
        ("greedy", greedy(model, source_BS, max_len=n_step)),
        ("beam", beam_search(model, source_BS, max_len=n_step, width=args.width)[0]),
    ):
        print(f"| {name}: {share_right(found, target_BT):.1%} of {len(target_BT)} sequences right")
    for source, found in zip(
        source_BS[:3].tolist(), greedy(model, source_BS[:3], max_len=n_step).tolist(), strict=True
    ):
        print(f"  {words(source)}  ->  {words(found)}")


def small_config(n_word: int) -> ModelConfig:
    """A model that learns to copy within a minute."""
    return ModelConfig(
        n_token=N_SPECIAL + n_word, n_layer=2, n_head=4, d_head=16, d_model=64, d_inner=128, position="sinusoid_input"
    )


def share_right(found_BT: torch.Tensor, target_BT: torch.Tensor) -> float:
    """The share of sequences that are right in every word, END included."""
    wider = torch.zeros_like(target_BT)
    wider[:, : found_BT.shape[1]] = found_BT
    return float((wider == target_BT).all(dim=1).float().mean())


def words(tokens: list[int]) -> str:
    """The words' numbers, without what begins, ends and fills up."""
    return " ".join(str(token - N_SPECIAL) for token in tokens if token >= N_SPECIAL)


if __name__ == "__main__":
    main()
