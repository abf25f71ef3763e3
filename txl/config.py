"""What a run is made of, as dataclasses: the one place where a flag has its name, type, default and help text.

`ModelConfig` is the shape of the weights, `Context` how far a forward pass looks back, `TrainConfig` how the weights
are found, `EvalConfig` what is measured, `GenerateConfig` what is written. `txl.cli` turns the fields into flags.
"""

from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from math import inf
from typing import Any, Literal, get_args, get_origin


class UsageError(ValueError):
    """Something the user can put right. The message names the thing, what is wrong with it and what to do."""


ATTN_IMPL_HELP = (
    "how relative attention is computed, all with the same result; auto: the fastest; naive: by its definition; dense: "
    "keeps the probabilities; blockwise: in memory that grows with the length alone; fused: a GPU kernel (Triton)"
)

TINY = 1e-30
"""The smallest temperature or probability that single precision still divides by."""

DTYPE_HELP = (
    "numbers of the matrix products; the weights, and what is summed, stay in float32; half as many bits are fast on a "
    "GPU and no longer exact"
)


def option(default: Any, help: str, *, flag: bool = True) -> Any:
    """A dataclass field with its help text; `flag=False` keeps it off the command line."""
    return field(default=default, metadata={"help": help, "flag": flag})


def require(condition: bool, message: str) -> None:
    """Raise `UsageError` with `message` unless `condition` holds."""
    if not condition:
        raise UsageError(message)


def _require_choices(config: Any) -> None:
    """What `txl.cli` sees to where a flag is typed."""
    for f in fields(config):
        value = getattr(config, f.name)
        if get_origin(f.type) is Literal and value not in get_args(f.type):
            there_are = ", ".join(get_args(f.type))
            raise UsageError(f"--{f.name} {value}: no such choice; there are {there_are}")


def require_at_least(config: Any, minimum: int, *names: str) -> None:
    """Raise `UsageError` if one of these fields is below the minimum."""
    for name in names:
        value = getattr(config, name)
        require(value >= minimum, f"--{name} {value}: must be at least {minimum}")


def _require_share(config: Any, name: str) -> None:
    value = getattr(config, name)
    require(0 < value < 1, f"--{name} {value}: must be above 0 and below 1")


def require_seed(seed: int) -> None:
    """Raise `UsageError` unless every library can begin from it."""
    require(0 <= seed < 2**32, f"--seed {seed}: must be at least 0 and below 2^32")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape of the weights. Saved in every checkpoint, where it is authoritative.

    Raises:
        UsageError: if the sizes do not fit together, or there is no such choice.
    """

    n_token: int = option(0, "words in the vocabulary", flag=False)
    n_layer: int = option(12, "number of layers")
    n_head: int = option(10, "number of attention heads")
    d_head: int = option(50, "size of a head")
    d_model: int = option(500, "size of the hidden states (even)")
    d_inner: int = option(1000, "inner size of the feed-forward net")
    d_embed: int = option(-1, "size of the word embeddings (-1: d_model)")
    adaptive: bool = option(False, "adaptive softmax, with the data set's cutoffs unless --cutoffs is given")
    cutoffs: tuple[int, ...] = option((), "ranks of the words at which a new cluster of the adaptive softmax begins")
    div_val: int = option(1, "each cluster's embedding is this many times narrower than the one before")
    not_tied: bool = option(False, "do not tie the word embedding and softmax weights")
    tie_projs: tuple[bool, ...] = option((), "per cluster: softmax and embedding share the projection", flag=False)
    pre_lnorm: bool = option(False, "apply LayerNorm to the input of a sub-layer instead of its output")
    reversible: bool = option(
        False, "layers of two streams whose inputs are computed from their outputs: no activations are kept"
    )
    activation: Literal["relu", "gelu", "relu2", "silu", "glu", "reglu", "geglu", "swiglu"] = option(
        "relu", "activation of the feed-forward net; relu2: squared; those with glu: gated, with 2 d_inner columns"
    )
    recurrence: Literal["below", "same"] = option(
        "below", "a layer remembers below: what it read; same: what it returned, which reaches back without limit"
    )
    untie_r: bool = option(False, "what the layers share of a position encoding, u and v for one, each has for itself")
    position: str = option("rel_sinusoid", "position encoding, see docs/encodings.md")
    n_position: int | None = option(
        None, "rows of learned tables of positions (not given: tgt_len + ext_len + mem_len of the training)"
    )
    max_distance: int | None = option(
        None, "distances from this one on are told alike (not given: as docs/encodings.md says of each encoding)"
    )
    n_bucket: int = option(32, "buckets that distances are sorted into")
    count_back: bool = option(False, "positions count from the end", flag=False)
    attention: Literal["softmax", "performer", "lsh"] = option(
        "softmax", "attention rule; performer: random features, linear in the length; lsh: within buckets of a hash"
    )
    n_feature: int = option(256, "random features of a layer")
    lsh_round: int = option(4, "rounds of hashing")
    lsh_bucket: int = option(64, "buckets of a round (even)")
    lsh_reach: int = option(64, "earlier tokens of its bucket that a token sees, and size of the sorted chunks")

    def __post_init__(self) -> None:
        _require_choices(self)
        require_at_least(self, 1, "n_token", "n_layer", "n_head", "d_head", "d_model", "d_inner", "div_val")
        if self.d_embed < 0:
            object.__setattr__(self, "d_embed", self.d_model)
        require_at_least(self, 1, "d_embed", "n_bucket", "n_feature", "lsh_round", "lsh_reach")
        for name in ("n_position", "max_distance"):
            if getattr(self, name) is not None:
                require_at_least(self, 1, name)
        require(
            self.lsh_bucket >= 2 and self.lsh_bucket % 2 == 0,
            f"--lsh_bucket {self.lsh_bucket}: must be even and at least 2, buckets are directions and their opposites",
        )
        require(
            self.lsh_round <= 255,
            f"--lsh_round {self.lsh_round}: at most 255, rounds that share a pair of tokens are counted in a byte",
        )
        require(
            self.d_model % 2 == 0,
            f"--d_model {self.d_model}: must be even, half of the position sinusoids are sines and half cosines; "
            f"use {self.d_model + 1}",
        )
        require(
            not self.reversible or self.pre_lnorm,
            "--reversible needs --pre_lnorm: a LayerNorm over the sum of a residual connection cannot be undone",
        )
        object.__setattr__(self, "cutoffs", tuple(self.cutoffs))
        object.__setattr__(self, "adaptive", self.adaptive or bool(self.cutoffs))
        object.__setattr__(self, "tie_projs", tuple(self.tie_projs))
        self._check_cutoffs()

    def _check_cutoffs(self) -> None:
        given = " ".join(map(str, self.cutoffs))
        borders = (0, *self.cutoffs)
        ascending = all(a < b for a, b in pairwise(borders))
        require(ascending, f"--cutoffs {given}: must be positive and ascending, with no rank named twice")
        require(
            not self.cutoffs or self.cutoffs[-1] < self.n_token,
            f"--cutoffs {given}: beyond the vocabulary of {self.n_token} words; the last cutoff must be below it",
        )

    @property
    def cluster_sizes(self) -> tuple[int, ...]:
        """Words per cluster, the shortlist first; one entry where there are no cutoffs."""
        borders = (0, *self.cutoffs, self.n_token)
        return tuple(b - a for a, b in pairwise(borders))

    @property
    def cluster_widths(self) -> tuple[int, ...]:
        """Embedding size of each cluster: d_embed // div_val^i. May reach 0, as in the original."""
        return tuple(self.d_embed // self.div_val**i for i in range(len(self.cluster_sizes)))


@dataclass(frozen=True, kw_only=True)
class Context:
    """How far a forward pass looks back. Not part of the weights: evaluation may look further than training did.

    All lengths are in tokens.

    Raises:
        UsageError: on lengths below their minimum or beyond all sense, and on `same_length` without memory.
    """

    tgt_len: int = option(70, "tokens to predict in a segment")
    mem_len: int = option(0, "tokens of the segments before that are remembered")
    ext_len: int = option(0, "tokens before the segment that are read again instead of remembered")
    same_length: bool = option(False, "every token attends to exactly mem_len keys, itself included")
    clamp_len: int = option(-1, "distances beyond this one share its position encoding (-1 or 0: off); masks nothing")

    def __post_init__(self) -> None:
        require_at_least(self, 1, "tgt_len")
        require_at_least(self, 0, "mem_len", "ext_len")
        require_at_least(self, -1, "clamp_len")
        for name in ("tgt_len", "mem_len", "ext_len", "clamp_len"):
            value = getattr(self, name)
            require(value < 2**31, f"--{name} {value}: beyond any text; must be below 2^31")
        require(
            not self.same_length or self.mem_len > 0,
            "--same_length needs --mem_len > 0: with --mem_len 0 no key at all would be visible; "
            "give a memory, or --no_same_length",
        )

    def overlaid(self, **given: int | bool | None) -> "Context":
        """The same with what was given in the place of what is here; None: it was not given."""
        return replace(self, **{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How the weights are found.

    Raises:
        UsageError: on values outside their range.
    """

    work_dir: str = option("runs/txl", "folder of the run, used as given: checkpoints and logs")
    overwrite: bool = option(False, "start anew in a folder that holds a run; its checkpoints are lost")
    resume: bool | int = option(
        False, "go on from the last whole checkpoint in --work_dir, if there is one; with a number, from that step's"
    )
    batch_size: int = option(60, "streams of text read side by side, over all processes")
    local_batch_size: int | None = option(None, "streams per process; sets --batch_size to this times the processes")
    batch_chunk: int = option(1, "the batch is computed in so many parts, one after another, to save memory")
    max_step: int = option(100000, "number of updates")
    max_step_scheduler: int | None = option(None, "updates the schedule is made for (not given: --max_step)")
    max_hours: float | None = option(None, "save and stop so many hours after this start")
    varlen: bool = option(False, "segments of varying length, as the original draws them")
    roll: bool = option(False, "in every epoch each stream begins at another place, drawn from the seed")
    optim: Literal["adam", "adamw", "sgd", "adagrad", "lamb", "muon"] = option(
        "adam", "optimizer; muon: for the matrices of the layers, adamw for the rest"
    )
    lr: float = option(0.00025, "peak learning rate")
    mom: float = option(0.0, "momentum of sgd")
    weight_decay: float = option(0.0, "weight decay")
    scheduler: Literal["cosine", "inv_sqrt", "dev_perf", "constant"] = option("cosine", "learning rate schedule")
    warmup_step: int = option(0, "updates over which the learning rate rises linearly to --lr")
    warmup_convention: Literal["txl", "original"] = option(
        "txl", "txl: update k of the warmup uses lr k/warmup_step; original: the first update uses lr, later ones lag"
    )
    eta_min: float = option(0.0, "cosine: the learning rate at its end")
    decay_rate: float = option(0.5, "dev_perf: the learning rate is multiplied by this when validation stops improving")
    patience: int = option(0, "dev_perf: evaluations without improvement that are borne")
    lr_min: float = option(0.0, "dev_perf: the lowest learning rate")
    clip: float = option(0.25, "largest norm of the gradient (0 or inf: no clipping)")
    dropout: float = option(0.0, "dropout of embeddings, positions, sub-layer outputs and the last hidden states")
    dropatt: float = option(0.0, "dropout of the attention probabilities")
    label_smoothing: float = option(
        0.0, "share of the target spread over all columns of a softmax, in training; what is logged is not smoothed"
    )
    init: Literal["normal", "uniform"] = option("normal", "distribution the weights are drawn from")
    init_range: float = option(0.1, "uniform: weights are drawn from U(-init_range, init_range)")
    init_std: float = option(0.02, "normal: weights are drawn from N(0, init_std)")
    proj_init_std: float = option(0.01, "projections of embeddings and softmax are drawn from N(0, proj_init_std)")
    seed: int = option(1111, "random seed")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "auto", "numbers of the matrix products; auto: bfloat16 on a GPU that has it, else float32"
    )
    tf32: bool = option(False, "float32 products on a GPU may use TF32")
    redraw_interval: int = option(1000, "updates between two draws of the random features or rotations (0: drawn once)")
    compile: bool = option(False, "compile the layers with torch.compile")
    attn_impl: Literal["auto", "naive", "dense", "blockwise", "fused"] = option("auto", ATTN_IMPL_HELP)
    recompute: bool = option(False, "compute each layer a second time in the backward pass, to save memory")
    ff_chunk: int = option(
        0, "tokens of a segment that the feed-forward net computes at a time, to save memory (0: all)"
    )
    swap_mem: bool = option(False, "keep the memory of the segments before in the host's RAM")
    on_nonfinite: Literal["stop", "skip"] = option("stop", "what to do when a gradient is not finite")
    max_nonfinite: int = option(10, "skip: so many updates in a row are skipped at most")
    log_interval: int = option(200, "updates between two lines of the log")
    eval_interval: int = option(4000, "updates between two evaluations on the valid split, each with a checkpoint")
    save_interval: int | None = option(None, "updates between two checkpoints (not given: --eval_interval)")
    keep_last: int = option(1, "checkpoints kept besides the best one")
    eval_tgt_len: int = option(50, "tgt_len of the evaluations; the memory is longer by what it is shorter")
    eval_batch_size: int | None = option(
        None,
        "streams of the evaluations, whose result does not depend on it but with --recurrence same (not given: 10, at "
        "least one for each process; 1 with --recurrence same)",
    )
    max_eval_steps: int = option(
        -1, "segments of the evaluations at most, those read to warm up included (-1: the whole split)"
    )
    target_perplexity: float | None = option(None, "exit with status 1 if the best valid perplexity is above this")
    target_throughput: float | None = option(None, "exit with status 1 if training was slower, in tokens per second")
    timeout_s: float = option(600.0, "several processes: seconds after which one that does not answer is given up")

    def __post_init__(self) -> None:
        require_at_least(self, 1, "batch_size", "batch_chunk", "max_step", "log_interval", "eval_interval")
        require_at_least(self, 1, "eval_tgt_len", "keep_last", "max_nonfinite")
        require_at_least(
            self, 0, "warmup_step", "redraw_interval", "ff_chunk", "eta_min", "patience", "lr_min", "weight_decay"
        )
        require_at_least(self, 0, "mom", "init_std", "proj_init_std", "init_range", "clip")
        if self.clip == inf:
            object.__setattr__(self, "clip", 0.0)
        require_seed(self.seed)
        for name in ("local_batch_size", "max_step_scheduler", "save_interval", "eval_batch_size"):
            if getattr(self, name) is not None:
                require_at_least(self, 1, name)
        for name in ("lr", "decay_rate", "timeout_s", "max_hours", "target_perplexity", "target_throughput"):
            value = getattr(self, name)
            require(value is None or value > 0, f"--{name} {value}: must be above 0")
        for name in ("dropout", "dropatt", "label_smoothing"):
            value = getattr(self, name)
            require(0 <= value < 1, f"--{name} {value}: must be at least 0 and below 1")
        require(self.resume in (False, True) or self.resume > 0, f"--resume {self.resume}: no step; count them from 1")
        require(
            not (self.resume and self.overwrite), "--resume and --overwrite: go on, or start anew; drop one of them"
        )

    @property
    def schedule_length(self) -> int:
        """Updates the schedule is made for."""
        return self.max_step_scheduler or self.max_step


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """What is measured. Lengths that are not given are those the checkpoint was trained with."""

    work_dir: str = option("runs/txl", "folder of the run, for its best checkpoint; or one checkpoint in it")
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
        "streams read side by side, at least one for each process unless given; with --convention txl the result does "
        "not depend on it, and where it would, with --recurrence same and --dynamic, it is 1 unless given",
    )
    tgt_len: tuple[int, ...] = option(
        (), "tokens to predict in a segment; several values are tried with each --mem_len"
    )
    mem_len: tuple[int, ...] = option((), "tokens of memory; several values make a table and context.png")
    ext_len: int | None = option(None, "tokens before the segment that are read again instead of remembered")
    clamp_len: int | None = option(None, "distances beyond this one share its position encoding (-1 or 0: off)")
    same_length: bool | None = option(None, "every token attends to exactly mem_len keys, itself included")
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
    attn_impl: Literal["auto", "naive", "dense", "blockwise", "fused"] = option("auto", ATTN_IMPL_HELP)
    dtype: Literal["float32", "bfloat16", "float16"] = option("float32", DTYPE_HELP)

    def __post_init__(self) -> None:
        require_at_least(self, 1, "batch_size")
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
class StudyConfig:
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
        20, "read anew from every so-many-th token on; contexts are shorter by less than this, 1 is exact and slow"
    )

    def __post_init__(self) -> None:
        require_at_least(self, 1, "recl_every")
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
class DynamicConfig:
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
    )
    dynamic_decay: float = option(0.001, "part of the way back to the trained weights at each step, for rms on average")
    dynamic_epsilon: float = option(0.0002, "rms: added to the root mean square of the gradients")
    dynamic_segments: int = option(500, "rms: segments of the training text to take these gradients from")

    def __post_init__(self) -> None:
        require_at_least(self, 1, "dynamic_segments")
        require(self.lr > 0, f"--dynamic_lr {self.lr:g}: must be above 0")
        require(
            0 <= self.dynamic_decay <= 1, f"--dynamic_decay {self.dynamic_decay:g}: must be at least 0 and at most 1"
        )
        require(self.dynamic_epsilon > 0, f"--dynamic_epsilon {self.dynamic_epsilon:g}: must be above 0")

    @property
    def lr(self) -> float:
        """The learning rate of the rule."""
        if self.dynamic_lr is not None:
            return self.dynamic_lr
        return 0.05 if self.dynamic == "sgd" else 0.0001


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """The continuous cache (Grave et al. 2017): the words just read, found again by similar hidden states.

    Raises:
        UsageError: on values outside their range.
    """

    cache_size: int = option(0, "tokens in the cache (0: no cache); streams are warmed up on as much text before them")
    cache_theta: float = option(0.1, "how sharply the cache tells similar hidden states from others")
    cache_lambda: float = option(0.15, "share of the cache in the probabilities")

    def __post_init__(self) -> None:
        require_at_least(self, 0, "cache_size", "cache_theta")
        require(self.cache_theta <= 1e30, f"--cache_theta {self.cache_theta}: must be at most 1e+30")
        _require_share(self, "cache_lambda")


@dataclass(frozen=True, kw_only=True)
class KnnConfig:
    """kNN-LM (Khandelwal et al. 2020): words that followed similar hidden states in the training text.

    Raises:
        UsageError: on values outside their range.
    """

    knn_store: str | None = option(
        None, "folder of the training text's hidden states, made where it is not there; 2 d_model + 4 bytes per token"
    )
    knn_tokens: int | None = option(None, "tokens of the training text in the store, from its start (not given: all)")
    knn_k: int = option(1024, "neighbours that are asked")
    knn_lambda: float = option(
        0.1, "share of the neighbours in the probabilities; the larger the store, the more (the paper: 0.25)"
    )
    knn_temperature: float = option(10.0, "the squared distances are divided by this")
    knn_faiss: bool = option(False, "find neighbours with faiss, fast and approximately: pip install faiss-cpu")

    def __post_init__(self) -> None:
        require_at_least(self, 1, "knn_k")
        require(self.knn_tokens is None or self.knn_tokens > 0, f"--knn_tokens {self.knn_tokens}: must be at least 1")
        _require_share(self, "knn_lambda")
        require(
            TINY <= self.knn_temperature < inf,
            f"--knn_temperature {self.knn_temperature}: must be above 0 (at least {TINY:g}), and must be finite",
        )


@dataclass(frozen=True, kw_only=True)
class GenerateConfig:
    """What is written, and how freely.

    Raises:
        UsageError: on values outside their range, and on an empty prompt.
    """

    work_dir: str = option("runs/txl", "folder of the run, for its best checkpoint; or one checkpoint in it")
    prompt: str | None = option(None, "text to go on from (-: standard input; not given: the beginning of a line)")
    length: int = option(200, "tokens to generate")
    finish_line: bool = option(False, "go on to the end of the paragraph, by at most --length tokens more")
    temperature: float = option(1.0, "below 1 the likely words become likelier; 0 always takes the likeliest")
    top_k: int = option(0, "draw from the k likeliest words only (0: off)")
    top_p: float = option(1.0, "draw from the likeliest words that together hold this probability")
    no_unk: bool = option(False, "never generate <unk>")
    seed: int = option(1111, "random seed")
    mem_len: int | None = option(None, "tokens of memory (not given: as in training)")
    clamp_len: int | None = option(None, "distances beyond this one share its position encoding (-1 or 0: off)")
    same_length: bool | None = option(None, "every token attends to exactly mem_len keys, itself included")
    attn_impl: Literal["auto", "naive", "dense", "blockwise", "fused"] = option("auto", ATTN_IMPL_HELP)
    dtype: Literal["float32", "bfloat16", "float16"] = option("float32", DTYPE_HELP)

    def __post_init__(self) -> None:
        require_at_least(self, 1, "length")
        require_at_least(self, 0, "top_k")
        require_seed(self.seed)
        require(
            self.temperature == 0 or TINY <= self.temperature < inf,
            f"--temperature {self.temperature}: must not be negative, must be 0 or at least {TINY:g}, and finite",
        )
        require(TINY <= self.top_p <= 1, f"--top_p {self.top_p}: must be above 0 (at least {TINY:g}) and at most 1")
        require(
            self.prompt is None or bool(self.prompt.strip()),
            "--prompt is empty: give some text, or leave the flag out to begin a new line",
        )


def as_dict(config: Any) -> dict[str, Any]:
    """The fields of a configuration as JSON-ready values."""
    values = {f.name: getattr(config, f.name) for f in fields(config)}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}
