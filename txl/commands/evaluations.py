"""What a training evaluates and shows of itself: streams to score, a sample of text, the best checkpoint at the end."""

from pathlib import Path

from txl.checkpoint import load_model, open_checkpoint
from txl.config import Context, ModelConfig, TrainConfig
from txl.data_utils.corpus import Corpus
from txl.data_utils.rows import RowStream, ScoringStream
from txl.data_utils.vocabulary import EOS, UNK
from txl.evaluation.conventions import reading_of
from txl.evaluation.reading import warmup_segments, within
from txl.evaluation.report import print_table
from txl.evaluation.rows import row_of_split
from txl.generation.sampling import generate
from txl.model.transformer import TransformerXL
from txl.runtime.distributed import Ranks
from txl.runtime.log import perplexity, print_line
from txl.training.metrics import Metrics


def scoring_stream(
    corpus: Corpus, split: str, config: TrainConfig, context: Context, shape: ModelConfig, ranks: Ranks
) -> RowStream:
    """This process's share of a split."""
    by_default = 1 if shape.recurrence == "same" else max(10, ranks.world)
    whole = ScoringStream(
        corpus.split(split),
        batch_size=config.eval_batch_size or by_default,
        tgt_len=context.tgt_len,
        ext_len=context.ext_len,
        n_warmup=warmup_segments(shape.n_layer, context),
    )
    return whole.share(ranks.rank, ranks.world)


def sample_text(model: TransformerXL, corpus: Corpus, context: Context, config: TrainConfig) -> str:
    """A text of the model as it is now, always from the same random numbers."""
    vocab, model = corpus.vocab, model.eval()
    rule = {"length": config.sample_length, "top_p": 0.95, "seed": config.seed}
    banned = [vocab.index[UNK]] if UNK in vocab else []
    ids = generate(model, [vocab.index[EOS]], within(context, config.sample_length + 1), banned=banned, **rule)
    words = [vocab.words[i] for i in ids]
    return " ".join("\n" if word == EOS else word for word in words)


def evaluate_best(
    run_folder: Path, corpus: Corpus, config: TrainConfig, context: Context, ranks: Ranks, metrics: Metrics
) -> None:
    """Score valid and test with the best checkpoint, whole, as evaluations during training read; a table, and the last
    line of the 2019 code."""
    checkpoint = open_checkpoint(run_folder)
    model = load_model(checkpoint).to(ranks.device)
    model.use_attention(config.attn_impl)
    rows = []
    for split in ("valid", "test"):
        here = within(context, len(corpus.split(split)))
        stream = scoring_stream(corpus, split, config, here, model.config, ranks)
        reading = reading_of("txl", model, here, n_token=len(corpus.split(split)))
        rows.append(row_of_split(split, [stream], reading, model, ranks, counts=stream.sums(corpus.sizes(split))))
    if ranks.is_main:
        print_table(rows)
        nats = rows[-1].score.nats_per_token
        metrics.add("test", checkpoint.record["step"], {"test/nll_nats": nats, "test/ppl": perplexity(nats)})
        print_line(f"| End of training | test loss {nats:5.2f} | test ppl {perplexity(nats):9.3f}")
