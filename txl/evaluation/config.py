"""Settings of evaluations and reports: dataclasses whose fields are the flags of `txl eval`, `txl
score` and `txl report`.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from txl.config import LENGTH, OWN, Checked, Context, NamesParts, option, require
from txl.registry import ADAPTATION_RULES
from txl.usage import MemoryUse, ModelUse, OneModel, ReadsOn

DEFAULTS: dict[str | None, dict[str, Any]] = {"nvidia": {"batch_size": 16}}
"""What a convention brings instead of the defaults of `EvalConfig`: the defaults of its program's
eval.py. That of the 2019 code and Hugging Face's have 10 streams too.
"""


@dataclass(frozen=True, kw_only=True)
class Lengths(ModelUse):
    """How far a model looks back while it reads, by default as in its training."""

    tgt_len: tuple[int, ...] = option(
        (),
        "tokens predicted per segment (default: as in training); several values are combined with"
        " each --mem_len",
        minimum=1,
        below=2**31,
    )
    mem_len: tuple[int, ...] = option(
        (),
        "tokens of memory (default: as in training); several values give a table and a plot,"
        " context.png",
        **LENGTH,
    )
    ext_len: int | None = option(
        None, "tokens before the segment that are read again instead of remembered", **LENGTH
    )
    json: str | None = option(None, "write the results to this file")

    def look_backs(self, trained: Context) -> list[Context]:
        """One context per requested segment and memory length; other settings as in `trained`."""
        contexts = []
        for tgt_len in self.tgt_len or (None,):
            for mem_len in self.mem_len or (None,):
                contexts.append(trained.as_asked(self, tgt_len=tgt_len, mem_len=mem_len))
        return contexts

    def _require_one_length(self, why: str) -> None:
        for name in ("tgt_len", "mem_len"):
            lengths = getattr(self, name)
            given = " ".join(map(str, lengths))
            require(len(lengths) < 2, f"--{name} {given}: {why}; give one value at most")


@dataclass(frozen=True, kw_only=True)
class EvalConfig(Lengths, OneModel):
    """What is evaluated and how. Lengths default to those of the training."""

    split: Literal["valid", "test", "all"] = option(
        "all", "split to evaluate; all: valid and test, if they are there"
    )
    convention: Literal["txl", "original", "nvidia", "huggingface"] = option(
        "txl",
        "txl: every token but the first is scored once, with full context; others: the protocol of"
        " that implementation, to reproduce its figures: --batch_size streams (nvidia: 16 by"
        " default), the remainder dropped",
    )
    reset: Literal["never", "document"] = option(
        "never",
        "document: start each document (in WikiText at a heading like = Title =) with an empty"
        " memory (default: as in training)",
    )
    batch_size: int = option(
        10,
        "streams read in parallel, by default at least one per process; with --convention txl"
        " results do not depend on it, except with --dynamic, --recurrence same and memories that"
        " look back without limit, where it is 1 by default",
        minimum=1,
    )
    borders: Literal["cut", "aside", "both"] = option(
        "cut",
        "cut: tokens stand anywhere in their segments, so that the first have little before them"
        " but the memory; aside: each token is predicted in the last quarter of a segment, with"
        " shifted segments in four readings, so that memories differ only in how far they see;"
        " both: also says what memory gains in all and by seeing further",
    )
    pictures: str | None = option(
        None,
        "directory for plots (default: that of --json; without --json the run's; of a model that is"
        " no run: none are drawn)",
    )
    attention_by_distance: bool = option(
        False,
        "attention of each head by distance, in a second pass over the text; attention.png",
        section="What is kept besides perplexity",
    )
    token_losses: str | None = option(
        None,
        "keep the nats of every token of every row in this file, a compressed .npz; see"
        " docs/evaluation.md",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.reset == "never" or self.convention == "txl",
            f"--reset {self.reset}: the streams of --convention {self.convention} begin anywhere in"
            " a document; drop one of the two",
        )
        require(
            self.borders == "cut" or self.convention == "txl",
            f"--borders {self.borders}: --convention {self.convention} has its own way to cut a"
            " text; drop one of the two",
        )
        require(
            self.borders != "aside" or not self.attention_by_distance,
            "--attention_by_distance: is measured where tokens stand anywhere in their segments;"
            " give --borders both, or leave --borders out",
        )
        require(
            self.token_losses is None or self.token_losses.endswith(".npz"),
            f"--token_losses {self.token_losses}: is a file of arrays; end its name in .npz",
        )


@dataclass(frozen=True, kw_only=True)
class ScoreConfig(Lengths, ReadsOn):
    """Which text is scored, and how."""

    text: str = option("-", "the file that is scored, from its first token on (-: standard input)")
    context: str | None = option(None, "a file that is read before it and not scored")
    each: Literal["file", "line", "document"] = option(
        "file",
        "what is read alone, after --context, and has its own total: the file, each line, or each"
        " document (by the --documents of the training; auto: at headings or after blank lines,"
        " else a line)",
    )
    tokenise: bool = option(
        False, "the file is running text; tokenise it as in WikiText, . like this ."
    )
    per_token: str | None = option(
        None,
        "write each token and its nats to this file, .tsv or .json (-: TSV, to standard output)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            (self.text, self.context) != ("-", "-"),
            "--text - and --context -: standard input can be only one of the two; name a file",
        )
        if self.per_token is not None:
            require(
                self.per_token == "-" or self.per_token.endswith((".tsv", ".json")),
                f"--per_token {self.per_token}: the file format follows from the name; end it in"
                " .tsv or .json",
            )
            self._require_one_length("--per_token is written for one")
        if self.each != "file":
            self._require_one_length(f"--each {self.each} prints totals of one")


class MethodSettings(Checked):
    """The settings of a test-time method, flags of the programs that evaluate; without any it is
    off.
    """

    @property
    def name(self) -> str:
        """The method in words; empty: it is off."""
        raise NotImplementedError

    @property
    def is_on(self) -> bool:
        """True if the method is asked for."""
        return self.name != ""

    @property
    def n_warmup(self) -> int:
        """Tokens that it has to see before the first that counts."""
        return 0

    def check(self, dtype: str, world: int) -> None:
        """Raise `UsageError` if it does not work in this dtype or in so many processes."""


OFF = "off"
"""The value of --dynamic without dynamic evaluation."""


@dataclass(frozen=True, kw_only=True, init=False)
class DynamicConfig(NamesParts, MethodSettings):
    """Dynamic evaluation (Krause et al. 2018, 2019): gradient steps on the evaluated text."""

    parts = (ADAPTATION_RULES,)
    dynamic: str = option(
        OFF,
        "update the weights by SGD or RMS after each scored segment; --batch_size defaults to 1, as"
        " parallel streams adapt the same weights and the result depends on their number",
    )
    dynamic_lr: float | None = option(
        None,
        "learning rate; tune it on valid, large models need much less (default: 0.05 for sgd,"
        " 0.0001 for rms)",
        above=0,
        when=("dynamic",),
    )
    dynamic_decay: float = option(
        0.001,
        "decay towards the trained weights per update, for rms on average",
        minimum=0,
        maximum=1,
        when=("dynamic",),
    )
    own: dict[str, Any] = field(default_factory=dict, metadata=OWN)

    def __post_init__(self) -> None:
        if self.is_on:
            ADAPTATION_RULES.require_known(self.dynamic)
        super().__post_init__()

    @property
    def name(self) -> str:
        if self.dynamic == OFF:
            return ""
        return f"dynamic {self.dynamic}"

    @property
    def rule(self) -> Any:
        """The class of the rule, if it is on."""
        return ADAPTATION_RULES[self.dynamic]

    @property
    def reads_training_text(self) -> bool:
        return self.is_on and self.rule.reads_training_text

    @property
    def lr(self) -> float:
        """The learning rate."""
        if self.dynamic_lr is not None:
            return self.dynamic_lr
        return self.rule.default_lr

    def check(self, dtype: str, world: int) -> None:
        if not self.is_on:
            return
        require(
            dtype == "float32",
            f"--dtype {dtype} and --dynamic {self.dynamic}: autocast caches the weights, which"
            " would not adapt; drop one of the two",
        )
        require(
            world == 1,
            f"--dynamic {self.dynamic}: adapts one set of weights to one text; run one process, not"
            f" {world}",
        )


@dataclass(frozen=True, kw_only=True)
class CacheConfig(MethodSettings):
    """The continuous cache (Grave et al. 2017): recent words, retrieved by
    similar hidden states.
    """

    cache_size: int = option(
        0,
        "tokens in the cache (0: no cache); streams warm up on that much text before them",
        minimum=0,
    )
    cache_theta: float = option(
        0.1,
        "sharpness of the cache: factor of the hidden states' dot products",
        minimum=0,
        maximum=1e30,
        when=("cache_size",),
    )
    cache_lambda: float = option(
        0.15, "interpolation weight of the cache", above=0, below=1, when=("cache_size",)
    )

    @property
    def name(self) -> str:
        if self.cache_size:
            return "cache"
        return ""

    @property
    def n_warmup(self) -> int:
        return self.cache_size


ADDED = (DynamicConfig, CacheConfig)
"""Of test-time methods."""
EVAL = (EvalConfig, MemoryUse, *ADDED)
SCORE = (ScoreConfig, MemoryUse, *ADDED)
"""Whose fields are the flags of these programs, besides those of the text."""


MOST_RUNS = 6
"""On one page: so many colours are told apart."""


@dataclass(frozen=True, kw_only=True)
class ReportConfig(Lengths):
    """What is drawn, and what is read for it. Lengths default to those of the training."""

    runs: tuple[str, ...] = option(
        (), "runs, checkpoints, or files report.json, that are shown on one page"
    )
    out: str | None = option(
        None,
        "file of the page (default: report.html in the run folder; of several runs in the current"
        " one)",
    )
    measure: bool = option(
        False, "read the text again although the run has a report.json of this checkpoint"
    )
    split: Literal["auto", "valid", "test"] = option(
        "auto",
        "split that is read; auto: test, or valid where there is no test",
        section="What is measured",
    )
    mem_len: tuple[int, ...] = option(
        (),
        "lengths of memory (default: none, a sixteenth, a quarter, once and twice that of the"
        " training); the page compares that of the training with the shortest",
        **LENGTH,
    )
    tokens: int = option(4000, "tokens of the split that are shown", minimum=1, maximum=50_000)
    first: int | None = option(
        None,
        "number of the first of them (default: a part in which memory saves as much as on average)",
        minimum=1,
    )
    attended: int = option(
        1000,
        "tokens of them for which it is kept what they looked at (0: none)",
        minimum=0,
        maximum=5000,
    )
    distances: bool = option(
        True, "attention of each head by distance, in another pass over the text"
    )
    sample_length: int = option(120, "tokens of the sample (0: none)", minimum=0, maximum=5000)
    json: str | None = option(None, "file of the figures (default: report.json in the run folder)")

    def __post_init__(self) -> None:
        super().__post_init__()
        given = " ".join(map(str, self.tgt_len))
        require(
            len(self.tgt_len) < 2,
            f"--tgt_len {given}: a report is of one segment length; give one value",
        )
        n_run = len(self.runs)
        require(
            n_run <= MOST_RUNS,
            f"--runs: {n_run} are too many for one page; give {MOST_RUNS} at most",
        )
