"""What an evaluation measures, as dataclasses whose fields are the flags of eval.py."""

from dataclasses import dataclass
from typing import Literal

from txl.config import LENGTH, TINY, Checked, Context, ModelUse, option, require


@dataclass(frozen=True, kw_only=True)
class EvalConfig(ModelUse):
    """What is measured. Lengths that are not given are those the checkpoint was trained with."""

    split: Literal["valid", "test", "all"] = option("all", "which text to evaluate")
    convention: Literal["txl", "original", "nvidia", "huggingface"] = option(
        "txl",
        "txl: every token but the first counts once, each read with all the text that the model can see; others: as "
        "they evaluate, to get their figures again: --batch_size streams, what is left over dropped",
    )
    reset: Literal["never", "document"] = option(
        "never", "document: each article, known by a heading like = Title =, is read with an empty memory"
    )
    batch_size: int = option(
        10,
        "streams read in parallel, at least one a process unless given; with --convention txl the result does not "
        "depend on it, but with --recurrence same and --dynamic, where it is 1 unless given",
        minimum=1,
    )
    tgt_len: tuple[int, ...] = option(
        (), "tokens predicted per segment; several values are tried with each --mem_len", minimum=1, below=2**31
    )
    mem_len: tuple[int, ...] = option(
        (), "tokens of memory; several values make a table and a plot, context.png", **LENGTH
    )
    ext_len: int | None = option(None, "tokens before the segment that are read again instead of remembered", **LENGTH)
    json: str | None = option(None, "write the results to this file")
    pictures: str | None = option(
        None, "folder for pictures (not given: that of --json; without --json that of the run)"
    )
    text: str | None = option(None, "score this file instead of a split, from its first token on (-: standard input)")
    context: str | None = option(None, "--text: a file that is read before it and not scored")
    tokenise: bool = option(False, "--text: running text, written as WikiText is before it is read: ends . like this .")
    per_token: str | None = option(
        None, "--text: write each token and its nats to this file, .tsv or .json (-: TSV, to standard output)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("json", "pictures"):
            require(getattr(self, name) != "", f"--{name} is empty: give it a name, or leave the flag out")
        self._check_text()
        require(
            self.reset == "never" or self.convention == "txl",
            f"--reset {self.reset}: the streams of --convention {self.convention} begin anywhere in a document; "
            f"drop one of the two",
        )

    def look_backs(self, trained: Context) -> list[Context]:
        """One for each segment and memory length asked for; what was not given is as in `trained`."""
        given = {name: getattr(self, name) for name in ("ext_len", "clamp_len", "same_length")}
        return [
            trained.overlaid(**given, tgt_len=tgt_len, mem_len=mem_len)
            for tgt_len in self.tgt_len or (None,)
            for mem_len in self.mem_len or (None,)
        ]

    def _check_text(self) -> None:
        if self.text is None:
            for name in ("context", "tokenise", "per_token"):
                require(not getattr(self, name), f"--{name}: goes with --text FILE; give one, or leave the flag out")
            return
        require(
            self.convention == "txl" and self.reset == "never",
            "--text: is read from its beginning as one stream; leave out --convention and --reset, which cut splits",
        )
        require(
            (self.text, self.context) != ("-", "-"),
            "--text - and --context -: standard input can be only one of the two; name a file",
        )
        if self.per_token is not None:
            require(
                self.per_token == "-" or self.per_token.endswith((".tsv", ".json")),
                f"--per_token {self.per_token}: its name says how it is written; end it in .tsv or .json",
            )
            for name in ("tgt_len", "mem_len"):
                lengths = getattr(self, name)
                require(len(lengths) <= 1, f"--per_token: is written for one --{name}; give it one value")


@dataclass(frozen=True, kw_only=True)
class StudyConfig(Checked):
    """What is studied of the length of the context besides perplexity.

    Raises:
        UsageError: on lengths outside their range.
    """

    loss_by_position: bool = option(
        False, "loss by position in the segment and since the document began; tables and position.png"
    )
    attention_by_distance: bool = option(
        False, "read the text once more for how far back each head looks; attention.png"
    )
    recl: tuple[str, ...] = option(
        (),
        "runs or checkpoints whose relative effective context lengths are measured on one split; a table and recl.png",
    )
    recl_step: int = option(100, "the context grows by so many tokens at a time, from so many on")
    recl_longest: int = option(1000, "the longest context that is tried")
    recl_every: int = option(
        20,
        "read anew from every so-many-th token on; contexts are shorter by less than this, 1 is exact and slow",
        minimum=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.recl_every <= self.recl_step,
            f"--recl_every {self.recl_every}: must not be above --recl_step ({self.recl_step}), or contexts of two "
            f"lengths would be the same",
        )
        require(
            self.recl_longest >= 2 * self.recl_step,
            f"--recl_longest {self.recl_longest}: two lengths at least are compared; use at least {2 * self.recl_step}",
        )

    @property
    def context_lengths(self) -> tuple[int, ...]:
        """Those that RECL is measured with."""
        return tuple(range(self.recl_step, self.recl_longest + 1, self.recl_step))


@dataclass(frozen=True, kw_only=True)
class DynamicConfig(Checked):
    """Dynamic evaluation (Krause et al. 2018, 2019): the weights follow the text that is read.

    Raises:
        UsageError: on values outside their range.
    """

    dynamic: Literal["off", "sgd", "rms"] = option(
        "off",
        "let the weights learn from each segment after it was scored; --batch_size is 1 unless given, as streams side "
        "by side adapt the same weights, each over its own part of the text, and the result depends on their number",
    )
    dynamic_lr: float | None = option(
        None,
        "learning rate, to be tuned on valid: large models want far less (not given: 0.05 for sgd, 0.0001 for rms)",
        above=0,
    )
    dynamic_decay: float = option(
        0.001, "part of the way back to the trained weights at each step, for rms on average", minimum=0, maximum=1
    )
    dynamic_epsilon: float = option(0.0002, "rms: added to the root mean square of the gradients", above=0)
    dynamic_segments: int = option(500, "rms: segments of the training text to take these gradients from", minimum=1)

    @property
    def lr(self) -> float:
        """The learning rate of the rule."""
        if self.dynamic_lr is not None:
            return self.dynamic_lr
        return 0.05 if self.dynamic == "sgd" else 0.0001


@dataclass(frozen=True, kw_only=True)
class CacheConfig(Checked):
    """The continuous cache (Grave et al. 2017): the words just read, found again by similar hidden states.

    Raises:
        UsageError: on values outside their range.
    """

    cache_size: int = option(
        0, "tokens in the cache (0: no cache); streams are warmed up on as much text before them", minimum=0
    )
    cache_theta: float = option(
        0.1, "how sharply the cache tells similar hidden states from others", minimum=0, maximum=1e30
    )
    cache_lambda: float = option(0.15, "share of the cache in the probabilities", above=0, below=1)


@dataclass(frozen=True, kw_only=True)
class KnnConfig(Checked):
    """kNN-LM (Khandelwal et al. 2020): words that followed similar hidden states in the training text.

    Raises:
        UsageError: on values outside their range.
    """

    knn_store: str | None = option(
        None, "folder of the training text's hidden states, made where it is not there; 2 d_model + 4 bytes per token"
    )
    knn_tokens: int | None = option(
        None, "tokens of the training text in the store, from its start (not given: all)", minimum=1
    )
    knn_k: int = option(1024, "neighbours that are asked", minimum=1)
    knn_lambda: float = option(
        0.1,
        "share of the neighbours in the probabilities; the larger the store, the more (the paper: 0.25)",
        above=0,
        below=1,
    )
    knn_temperature: float = option(10.0, "the squared distances are divided by this", minimum=TINY)
    knn_faiss: bool = option(False, "find neighbours with faiss, fast and approximately: pip install faiss-cpu")
