"""The architecture of a new model: the flags, and what follows from the text."""

from dataclasses import dataclass, replace

import numpy as np

from txl.cli.flags import Typed
from txl.config import Context, ModelConfig, build, require
from txl.convert.kimiyoung_arguments import PUBLISHED, Published
from txl.data_utils.corpus import Corpus
from txl.memory import n_kept_at_most
from txl.model.axes import chosen_by, is_read
from txl.model.cutoffs import best_cutoffs, products_per_token
from txl.positions.base import TableSettings
from txl.runtime.distributed import Ranks
from txl.runtime.log import print_line

AUTO = ("auto",)
CUTOFF_SHARES = (0.075, 0.15, 0.75)  # WikiText-103's, for vocabularies of other sizes
_AT_A_TIME = 1 << 24


@dataclass(frozen=True)
class Shape:
    """An architecture before its text is known.

    Attributes:
        model: all of it but words and clusters.
        cutoffs: as asked for; None: nothing is.
    """

    model: ModelConfig
    cutoffs: tuple[int, ...] | tuple[str, ...] | None

    def of_text(self, corpus: Corpus, ranks: Ranks) -> ModelConfig:
        """The model for a text. --cutoffs auto asks for the cheapest ones for its frequencies."""
        n_token = len(corpus.vocab)
        if self.cutoffs != AUTO:
            return self.of_words(n_token, corpus.config.dataset)
        ids = corpus.split("train")
        plain = replace(self.model, n_token=n_token)
        parts = (ids[i : i + _AT_A_TIME] for i in range(0, len(ids), _AT_A_TIME))
        counts_V = sum(np.bincount(part.astype(np.int64), minlength=n_token) for part in parts)
        assert isinstance(counts_V, np.ndarray)
        found = best_cutoffs(counts_V, plain)
        if ranks.is_main:
            chosen = products_per_token(counts_V, found, plain)
            whole = products_per_token(counts_V, (), plain)
            print_line(
                f"| --cutoffs auto: {' '.join(map(str, found)) or 'none'}: {chosen:,.0f} products"
                f" per token in the softmax, {whole:,.0f} without cutoffs"
            )
        plain = replace(self.model, adaptive=bool(found))
        return replace(self, model=plain, cutoffs=found).of_words(n_token, corpus.config.dataset)

    def of_words(self, n_token: int, dataset: str) -> ModelConfig:
        """The model of as many words, with what follows from the data set: cutoffs, tied
        projections. Raises `UsageError` if there are too few words for clusters, or a cluster's
        embeddings get no width.
        """
        published = PUBLISHED.get(dataset, Published(()))
        cutoffs = self.cutoffs or ()
        if self.model.adaptive and self.cutoffs is None:
            cutoffs = published.cutoffs
            if not cutoffs or cutoffs[-1] >= n_token:
                cutoffs = tuple(int(share * n_token) for share in CUTOFF_SHARES)
                few = (
                    f"--adaptive: a vocabulary of {n_token} words is too small for clusters; drop"
                    " the flag"
                )
                require(0 < cutoffs[0] < cutoffs[1] < cutoffs[2] < n_token, few)
        tied = (False,) + (published.ties_projections,) * len(cutoffs)
        config = replace(self.model, n_token=n_token, cutoffs=cutoffs, tie_projs=tied)
        widths = " ".join(map(str, config.cluster_widths))
        none = (
            f"--div_val {config.div_val}: embeddings of the clusters get widths {widths}; raise"
            " --d_embed"
        )
        require(0 not in config.cluster_widths, none)
        return config


def shape_of(typed: Typed, context: Context) -> Shape:
    """What flags ask for; `context` says how many positions a learned table has.

    Raises `UsageError`.
    """
    cutoffs = typed.get("cutoffs")
    mixed = cutoffs is not None and cutoffs != AUTO and AUTO[0] in cutoffs
    require(not mixed, f"--cutoffs {' '.join(map(str, cutoffs or ()))}: give ranks, or auto alone")
    asked = {}
    for name, value in typed.items():
        if name != "cutoffs":
            asked[name] = value
    model = build(ModelConfig, asked)
    n_position = context.tgt_len + context.ext_len + n_kept_at_most(model, context)
    has_table = is_read("n_position", **chosen_by(model))
    if has_table and model.settings(TableSettings).n_position is None:
        model = replace(model, n_position=n_position)
    return Shape(model, cutoffs)
