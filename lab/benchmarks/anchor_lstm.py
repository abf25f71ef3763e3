"""An LSTM language model beside a study's Transformer-XL: the same tokens in the same order, about as many weights.

    python -m lab.benchmarks.anchor_lstm --data data/wikipedia-8m --max_step 5860 --lrs 0.002 0.004 0.008 --seeds 1 2 3
        [--search_step 300] [--device cuda] [--json FILE]

The text, its vocabulary and its streams are those that train.py has of the same --data, --dataset, --max_size,
--batch_size and --tgt_len, and the embedding and the softmax are txl's. Between them stands `torch.nn.LSTM`, whose
state goes from segment to segment; an epoch begins with an empty one. AdamW, with a linear warm-up and a cosine to 0.
Computed in float32, without TF32.

Every rate of --lrs is first tried for --search_step updates with --search_seed, on a schedule of that length; the one
with the lowest valid loss is taken. No rate is tried beyond those given: the program says so if the best is the first
or the last of them. The weights are those after the last update. Valid and test are read whole, each in one go from an
empty state, and every token but the first is scored, as eval.py does. That takes minutes on a CPU; with
--eval_batch_size 64 so many streams read a part each, and 1,024 tokens before it that they do not score.
"""

import argparse
import itertools
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lab.benchmarks.peers import positive, say_machine, write_as_found
from txl.config import ModelConfig, build
from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.segments import SegmentStream, scoring_stream
from txl.errors import UsageError
from txl.evaluation.reading import of_counted
from txl.model.adaptive import AdaptiveEmbedding, AdaptiveSoftmax
from txl.runs.resolve import Shape
from txl.runtime.log import perplexity
from txl.training.config import TrainConfig
from txl.training.init import init_weights
from txl.training.schedules import schedule_of
from txl.training.update_rules import rule_of

State = tuple[Tensor, Tensor] | None
"""Hidden and cell states of all layers, (n_layer, B, d_hidden) each; None: zeros."""
AT_ONCE = 1024
"""Tokens of a split that a stream reads at once; also those that each but the first reads before
those that count."""
SEARCH_STREAMS = 64
"""By which valid is read to compare rates."""
WARMUP_SHARE = 0.08
"""Of the updates, as in the studies."""


class LSTMLanguageModel(nn.Module):
    """Words in, losses and state out.

    Args:
        words: sizes of the embedding and the softmax.
        d_hidden: units of each layer; a last matrix makes them d_model wide again.
        dropout: of the embeddings, between layers and of the last hidden states.

    Projections of embedding and softmax begin with the scale of their input, since no norm mends
    that of train.py here, which gives 0.28 nats more in training after 300 updates at 0.004.
    """

    def __init__(self, words: ModelConfig, *, n_layer: int, d_hidden: int, dropout: float) -> None:
        super().__init__()
        self.word_emb = AdaptiveEmbedding(words)
        self.softmax = AdaptiveSoftmax(words, self.word_emb)
        init_weights(
            nn.ModuleList([self.word_emb, self.softmax]),
            TrainConfig(proj_init_std=words.d_model**-0.5),
        )
        between = dropout if n_layer > 1 else 0.0
        self.lstm = nn.LSTM(words.d_model, d_hidden, n_layer, batch_first=True, dropout=between)
        self.out = nn.Linear(d_hidden, words.d_model)
        self.drop = nn.Dropout(dropout)

    def nll(self, input_BT: Tensor, target_BT: Tensor, state: State) -> tuple[Tensor, State]:
        """Loss of each target in nats, (B, T), and the state after the segment. Ids are on the CPU."""
        hidden_BTH, state = self.lstm(self.drop(self.word_emb(input_BT)), state)
        hidden_BTD = self.drop(self.out(hidden_BTH))
        return self.softmax.nll(hidden_BTD, target_BT), state

    def n_weights(self) -> tuple[int, int]:
        """All, and those of the layers: without embedding and softmax."""
        n_layers = sum(p.numel() for part in (self.lstm, self.out) for p in part.parameters())
        return sum(p.numel() for p in self.parameters()), n_layers


def new_model(args: argparse.Namespace, n_token: int, seed: int) -> LSTMLanguageModel:
    """A model with weights drawn from the seed, from which its dropout is drawn as well."""
    plain = ModelConfig(d_model=args.d_model, div_val=args.div_val)
    words = Shape(plain, tuple(args.cutoffs)).of_words(n_token, args.dataset)
    torch.manual_seed(seed)
    model = LSTMLanguageModel(
        words, n_layer=args.n_layer, d_hidden=args.d_hidden, dropout=args.dropout
    )
    return model.to(args.device)


def train(
    model: LSTMLanguageModel,
    stream: SegmentStream,
    args: argparse.Namespace,
    *,
    lr: float,
    max_step: int,
) -> dict[str, Any]:
    """Train in place; what was read, in which time."""
    asked = {
        "optim": "adamw",
        "scheduler": "cosine",
        "lr": lr,
        "max_step": max_step,
        "warmup_step": round(WARMUP_SHARE * max_step),
        "weight_decay": args.weight_decay,
    }
    config = build(TrainConfig, asked)
    schedule = schedule_of(config)
    optimizer = rule_of(config).build([*model.parameters()])
    model.train()
    begin = time.perf_counter()
    n_token = 0
    state: State = None
    segments = segments_of(stream, max_step)
    for step, (input_BT, target_BT, begins_epoch) in enumerate(segments):
        state = None if begins_epoch else detached(state)
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(step)
        nll_BT, state = model.nll(input_BT, target_BT, state)
        loss = nll_BT.mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        optimizer.zero_grad()
        n_token += target_BT.numel()
        if (step + 1) % args.log_interval == 0:
            print(f"| step {step + 1} | loss {float(loss.detach()):.3f}", flush=True)
    if args.device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    return {"tokens": n_token, "seconds": seconds, "warmup_step": config.warmup_step}


def detached(state: State) -> State:
    """The state without the way back to the segments before."""
    if state is None:
        return None
    hidden, cell = state
    return hidden.detach(), cell.detach()


def segments_of(stream: SegmentStream, n: int) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """The first n segments of a training; True: it begins an epoch."""
    epochs = map(stream.epoch, itertools.count(1))
    numbered = itertools.chain.from_iterable(map(enumerate, epochs))
    for i, (input_BT, target_BT, _) in itertools.islice(numbered, n):
        yield input_BT, target_BT, i == 0


@torch.no_grad()
def nats_of(model: LSTMLanguageModel, ids: np.ndarray, n_stream: int = 1) -> dict[str, float]:
    """The loss on a split, which so many streams read side by side, each from an empty state: tokens
    that are scored, nats of each, perplexity."""
    model.eval()
    state: State = None
    nats = 0.0
    n_token = 0
    streams = scoring_stream(ids, batch_size=n_stream, tgt_len=AT_ONCE, n_warmup=1)
    for input_BT, target_BT, counted_BT in streams:
        nll_BT, state = model.nll(input_BT, target_BT, state)
        nll_N = of_counted(nll_BT, counted_BT)
        nats += float(nll_N.double().sum())
        n_token += len(nll_N)
    mean = nats / n_token
    return {"tokens": n_token, "nats_per_token": mean, "perplexity": perplexity(mean)}


def searched(
    corpus: Corpus, stream: SegmentStream, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Each rate with the valid loss of its short training, the best one first."""
    found = []
    for lr in args.lrs if len(args.lrs) > 1 else []:
        model = new_model(args, len(corpus.vocab), args.search_seed)
        row = {"lr": lr, **train(model, stream, args, lr=lr, max_step=args.search_step)}
        row["valid"] = nats_of(model, corpus.split("valid"), SEARCH_STREAMS)
        print(f"| rate {lr:g}: valid {row['valid']['nats_per_token']:.4f} nats", flush=True)
        found.append(row)
    return sorted(found, key=valid_nats)


def valid_nats(row: dict[str, Any]) -> float:
    """Infinite for a training that went astray."""
    nats = row["valid"]["nats_per_token"]
    return nats if math.isfinite(nats) else math.inf


def trained(
    corpus: Corpus, stream: SegmentStream, args: argparse.Namespace, lr: float
) -> Iterator[dict[str, Any]]:
    """A row for each seed, printed as it is found."""
    for seed in args.seeds:
        model = new_model(args, len(corpus.vocab), seed)
        row: dict[str, Any] = {"seed": seed, "lr": lr}
        row |= train(model, stream, args, lr=lr, max_step=args.max_step)
        for split in ("valid", "test"):
            row[split] = nats_of(model, corpus.split(split), args.eval_batch_size)
        print(
            f"| seed {seed}: {row['tokens']:,} tokens in {row['seconds']:.0f} s,"
            f" valid {row['valid']['perplexity']:.2f}, test {row['test']['perplexity']:.2f}",
            flush=True,
        )
        yield row


def main() -> None:
    args = arguments().parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: PyTorch finds no GPU; use --device cpu")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    try:
        config = DataConfig(data=args.data, dataset=args.dataset, max_size=args.max_size)
        corpus = Corpus(config, needed=("train", "valid", "test"))
        stream = SegmentStream(
            corpus.split("train"), batch_size=args.batch_size, tgt_len=args.tgt_len
        )
        n_all, n_layers = new_model(args, len(corpus.vocab), 0).n_weights()
    except UsageError as error:
        raise SystemExit(str(error)) from None
    say_machine()
    print(f"| {n_all:,} parameters ({n_layers:,} in the layers), {len(corpus.vocab):,} words")
    search = searched(corpus, stream, args)
    lr = search[0]["lr"] if search else args.lrs[0]
    if search and lr in (min(args.lrs), max(args.lrs)):
        print(f"| the best rate, {lr:g}, is at the end of those tried", flush=True)
    settings = {name: value for name, value in vars(args).items() if name != "json"}
    write_as_found(
        args.json,
        trained(corpus, stream, args, lr),
        parameters=n_all,
        parameters_in_layers=n_layers,
        n_token=len(corpus.vocab),
        settings=settings,
        search=search,
    )


def arguments() -> argparse.ArgumentParser:
    """The flags. Those that train.py has too mean the same; defaults are the studies'."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, metavar="FOLDER")
    parser.add_argument("--dataset", default="text", help="[text]")
    parser.add_argument("--max_size", type=positive, default=20000, help="[20000]")
    parser.add_argument("--cutoffs", type=positive, nargs="*", default=[3000, 10000])
    parser.add_argument("--div_val", type=positive, default=2, help="[2]")
    parser.add_argument("--d_model", type=positive, default=256, help="of the words [256]")
    parser.add_argument("--n_layer", type=positive, default=2, help="[2]")
    parser.add_argument("--d_hidden", type=positive, default=480, help="units of a layer [480]")
    parser.add_argument("--dropout", type=float, default=0.1, help="[0.1]")
    parser.add_argument("--batch_size", type=positive, default=16, help="[16]")
    parser.add_argument("--tgt_len", type=positive, default=64, help="[64]")
    parser.add_argument("--weight_decay", type=float, default=0.1, help="[0.1]")
    parser.add_argument("--clip", type=float, default=0.25, help="[0.25]")
    parser.add_argument("--max_step", type=positive, default=5860, help="updates [5860]")
    parser.add_argument("--lrs", type=float, nargs="+", default=[0.004], metavar="LR")
    parser.add_argument("--search_step", type=positive, default=300, help="of each rate [300]")
    parser.add_argument("--search_seed", type=int, default=101, help="[101]")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="[1]")
    parser.add_argument("--eval_batch_size", type=positive, default=1, help="streams [1]")
    parser.add_argument("--log_interval", type=positive, default=195, help="[195]")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    return parser


if __name__ == "__main__":
    main()
