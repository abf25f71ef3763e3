"""Configurations: dataclasses whose fields hold name, type, default, bounds and help text of a
flag.

`txl.settings.flags` turns the fields into flags. The configurations of train.py, eval.py and generate.py
are in `config.py` of `txl.training`, `txl.evaluation` and `txl.generation`.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from itertools import pairwise
from math import inf, isfinite, log2
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
)

from txl.errors import UsageError, require
from txl.registry import (
    ACTIVATIONS,
    NORMS,
    PARTS,
    Registry,
    default_of,
    names_of_settings,
    setting_in,
    settings_of,
)

S = TypeVar("S")

TINY = 1e-30
"""The smallest divisor that float32 allows for a temperature or probability."""
SIZE: "Limits" = {"minimum": 1, "below": 2**31}
LENGTH: "Limits" = {"minimum": 0, "below": 2**31}
SEED: "Limits" = {"minimum": 0, "below": 2**32}
FEW: "Limits" = {"minimum": 1, "maximum": 2**16}
"""Of what is made one by one."""
_LARGEST = 2**63
"""No whole number is as large, whatever its option says: PyTorch and iterators count in 64 bits."""
TextKind = Literal["wt103", "wt2", "ptb", "enwik8", "text8", "lm1b", "text"]
"""Kinds of text that models of other programs were trained on."""
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
AttnImpl = Literal["auto", "naive", "dense", "fused"]
ATTN_IMPL_HELP = (
    "implementation of relative attention, all with the same result; auto: by the shape; naive: by"
    " definition; dense: stores the probabilities for the backward pass; fused: a GPU kernel"
    " (Triton)"
)
KEEP_MIB = 32
"""The default of --attn_keep_mib: so much stays in the second-level cache of an H100 or H200, which
has 50 MB.
"""
DEVICE_HELP = "cuda, cuda:1, cpu or mps (Apple, untested); auto: CUDA if available, else the CPU"
CLAMP_LEN_HELP = "larger distances share the position encoding of this one (-1 or 0: off)"
LOOKUP_LEN_HELP = "tokens before the memory that are looked up"
LOOKUP: "Limits" = {"minimum": 0, "maximum": 2**18}
COMPRESSED_LEN_HELP = "compressed states before the memory, each of --compress_rate tokens"
SAME_LENGTH_HELP = "every token attends to exactly mem_len keys, itself included"


class Limits(TypedDict, total=False):
    """The range of a value, which must be finite unless `finite` is False."""

    minimum: float
    above: float
    maximum: float
    below: float
    finite: bool


_RULES: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("at least", operator.ge),
    "above": ("above", operator.gt),
    "maximum": ("at most", operator.le),
    "below": ("below", operator.lt),
}


def refusal(value: float, limits: Limits) -> str:
    """What the value must be; empty if it is in range. NaN never is."""
    if isinstance(value, int) and not {"maximum", "below"} & limits.keys():
        limits = {**limits, "below": _LARGEST}
    rules = []
    for name, bound in limits.items():
        if name in _RULES:
            rules.append((*_RULES[name], bound))
    finite = (
        isinstance(value, int)
        or isfinite(value)
        or (value == inf and not limits.get("finite", True))
    )
    if finite and all(holds(value, bound) for _, holds, bound in rules):
        return ""
    parts = [f"{word} {_number(bound)}" for word, _, bound in rules]
    return " and ".join(parts if finite else [*parts, "finite"])


def _number(bound: Any) -> str:
    if bound >= 2**20 and log2(bound).is_integer():
        return f"2^{log2(bound):.0f}"
    return f"{bound:g}"


def option(
    default: Any,
    help: str,
    *,
    flag: bool = True,
    section: str = "",
    when: tuple[str, ...] = (),
    repeats: bool = False,
    **bounds: Unpack[Limits],
) -> Any:
    """A dataclass field with help text and bounds.

    Args:
        flag: False: not a flag.
        section: title in --help of this field and those after it.
        when: (another field, values of it): the flag has no effect otherwise, and is refused; no
            values: any but the default.
        repeats: a flag of several values that is given twice has the values of both; else those of
            the last.
        bounds: of a number, or of each number of a tuple; None is not checked.
    """
    metadata = {
        "help": help,
        "flag": flag,
        "section": section,
        "when": when,
        "repeats": repeats,
        "bounds": bounds,
    }
    return field(default=default, metadata=metadata)


class Checked:
    """A configuration that checks the choices and bounds of its fields when it is created; no text
    in one is empty. Raises `UsageError`.
    """

    def __post_init__(self) -> None:
        for f in fields(self):  # type: ignore[arg-type]
            check_field(f, getattr(self, f.name))


def build(cls: type, asked: Mapping[str, Any], **base: Any) -> Any:
    """A configuration: those of its fields that are `asked` for override `base`, which overrides
    the defaults.
    """
    names = names_of(cls)
    return cls(**{**base, **{name: value for name, value in asked.items() if name in names}})


def names_of(cls: type) -> list[str]:
    """Names of the fields of a configuration, with the settings of all parts that it may name."""
    names = [f.name for f in fields(cls)]
    if issubclass(cls, NamesParts):
        names += names_of_settings(cls.parts)
    return names


def field_of(cls: type, name: str) -> Field | None:
    """The field or setting of this name, see `names_of`; None: there is none."""
    for f in fields(cls):
        if f.name == name:
            return f
    if issubclass(cls, NamesParts):
        return setting_in(cls.parts, name)
    return None


def hints_of(cls: type, names: Iterable[str]) -> dict[str, Any]:
    """The types of those of the fields of a configuration that have these names."""
    hints = get_type_hints(cls)
    found = {}
    for name in names:
        f = field_of(cls, name)
        if f is not None:
            found[name] = hints.get(name, f.type)
    return found


def check_field(f: Field, value: Any) -> None:
    """Raise `UsageError` if a value is not among the choices, or out of the bounds, of a field made
    by `option`; of several values each.
    """
    if isinstance(value, tuple | list):
        for one in value:
            check_field(f, one)
        return
    require(value != "", f"--{f.name} is empty: give it a value, or leave the flag out")
    if get_origin(f.type) is Literal and value not in get_args(f.type):
        raise UsageError(
            f"--{f.name} {value}: no such choice; there are {', '.join(map(str, get_args(f.type)))}"
        )
    if isinstance(value, int | float) and not isinstance(value, bool):
        must_be = refusal(value, f.metadata["bounds"])
        require(not must_be, f"--{f.name} {value}: must be {must_be}")


class PartSettings(Checked):
    """The settings of a part of a model, a dataclass beside it. They are flags, saved with the
    model, and fields of `ModelConfig`, which has those of the parts that it names in `own`.
    """

    def require_fits(self, config: "ModelConfig") -> None:
        """Raise `UsageError` if they do not go together with the other settings of a model."""

    def of_any_depth(self) -> Self:
        """The same for a model of any number of layers."""
        return self

    def enough(self, context: "Context") -> "Context":
        """A context in which a training step keeps as much for its backward pass, with shorter
        lengths if some do not matter for that.
        """
        return context


OWN = {"flag": False, "bounds": {}, "when": (), "help": ""}
"""What is said of the field `own` of `NamesParts`."""


class NamesParts(Checked):
    """A configuration that names parts, whose settings are fields of it like others: in its
    constructor, for `dataclasses.replace`, and as attributes.

    In a subclass, a dataclass made with `init=False`, each registry of `parts` has a field of the
    name of its flag, and `own` holds the settings of the parts that are named, and of other parts
    what is not at its default.
    """

    parts: ClassVar[tuple[Registry, ...]]
    if TYPE_CHECKING:
        own: dict[str, Any]

    def __init__(self, **given: Any) -> None:
        own = dict(given.pop("own", {}))
        for f in fields(self):  # type: ignore[arg-type]
            object.__setattr__(self, f.name, given.pop(f.name, f.default))
        for name, value in (own | given).items():
            own[name] = tuple(value) if isinstance(value, list) else value  # of JSON
        object.__setattr__(self, "own", own)
        self.__post_init__()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "own", self._settings_of_parts())

    def settings(self, cls: type[S]) -> S:
        """Those of a part, which has this class of settings."""
        values = {f.name: self.own.get(f.name, default_of(f)) for f in fields(cls)}  # type: ignore[arg-type]
        return cls(**values)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A setting of one of its parts; what another part has is at its default."""
            own = self.__dict__.get("own", {})
            if name in own:
                return own[name]
            if name.startswith("__"):  # asked for by `copy` and `pickle`
                raise AttributeError(name)
            setting = setting_in(self.parts, name)
            if setting is not None:
                return default_of(setting)
            cls = type(self).__name__
            raise AttributeError(f"{cls} has no field {name}, and no part has this setting")

    def _parts(self) -> Iterator[Any]:
        """The classes of the parts that it names, as far as they are known."""
        for registry in self.parts:
            name = getattr(self, registry.flag)
            if name in registry:
                yield registry[name]

    def _is_known(self, registry: Registry) -> bool:
        """True if the part of a registry is there, or there is none by default."""
        name = getattr(self, registry.flag)
        return name in registry or name == getattr(type(self), registry.flag)

    def _settings_of_parts(self) -> dict[str, Any]:
        """Of `own` the settings of its parts, the others at their defaults. Raises `UsageError` for
        values out of their bounds, `TypeError` for what is no setting.
        """
        own: dict[str, Any] = {}
        for registry in self.parts:
            for f in registry.fields(getattr(self, registry.flag)):
                own[f.name] = self.own.get(f.name, default_of(f))
                check_field(f, own[f.name])
        is_known = all(map(self._is_known, self.parts))
        for name in sorted(self.own.keys() - own.keys()):
            f = setting_in(self.parts, name)
            if f is not None:
                check_field(f, self.own[name])
                if self.own[name] != default_of(f):
                    own[name] = self.own[name]
            elif is_known:
                cls = type(self).__name__
                raise TypeError(f"{cls} has no field {name!r}, and no part has this setting")
            else:  # of a part in a file that has not been run, see `txl.plugins`
                own[name] = self.own[name]
        return own


@dataclass(frozen=True, kw_only=True, init=False)
class ModelConfig(NamesParts):
    """The model's architecture.

    Saved in every checkpoint, whose values override flags and defaults.
    """

    parts = PARTS
    n_token: int = option(0, "words in the vocabulary", flag=False, **LENGTH)
    n_layer: int = option(12, "number of layers", section="model", minimum=1, maximum=2**12)
    n_head: int = option(10, "number of attention heads", **SIZE)
    d_head: int = option(50, "size of a head", **SIZE)
    d_model: int = option(
        500, "size of the hidden states (even where positions are sines and cosines)", **SIZE
    )
    d_inner: int = option(1000, "inner size of the feed-forward net", **SIZE)
    d_embed: int = option(-1, "size of the word embeddings (-1: d_model)", **SIZE)
    adaptive: bool = option(
        False, "adaptive softmax, with the data set's cutoffs unless --cutoffs is given"
    )
    cutoffs: tuple[int, ...] = option(
        (),
        "ranks of the words at which a new cluster of the adaptive softmax begins; auto: the"
        " fastest",
    )
    div_val: int = option(
        1, "each cluster's embedding is this many times narrower than the one before", minimum=1
    )
    not_tied: bool = option(False, "do not tie the word embedding and softmax weights")
    scale_embedding: bool = option(True, "word embeddings are multiplied by sqrt(d_model)")
    softmax_bias: bool = option(True, "words have a bias in the softmax")
    tie_projs: tuple[bool, ...] = option(
        (), "per cluster: softmax and embedding share the projection", flag=False
    )
    pre_lnorm: bool = option(
        False, "apply LayerNorm to the input of a sub-layer instead of its output"
    )
    norm: str = option(
        "layer", "norm of the layers: layer: LayerNorm; rms: RMSNorm, without a mean or a bias"
    )
    layer_norm_epsilon: float = option(
        1e-5, "added in a norm to the variance or the mean square", minimum=0
    )
    final_norm: bool = option(False, "apply the norm to the output of the last layer")
    reversible: bool = option(
        False,
        "reversible layers: inputs are recomputed from outputs, so no activations are kept; needs"
        " --pre_lnorm",
    )
    parallel: bool = option(
        False,
        "attention and feed-forward net read the same input, as in GPT-NeoX; needs --pre_lnorm",
    )
    gate: str = option(
        "none", "gate in place of each residual sum, as in GTrXL; needs --pre_lnorm; none: the sum"
    )
    activation: str = option(
        "relu",
        "activation of the feed-forward net; relu2: squared; those with glu: gated, with 2 d_inner"
        " columns",
    )
    ff_bias: bool = option(True, "the feed-forward net has biases")
    n_kv_head: int | None = option(
        None,
        "heads of keys and values, each read by n_head / n_kv_head heads of queries (not given:"
        " n_head)",
        **SIZE,
    )
    qkv_bias: bool = option(False, "queries, keys and values have biases")
    o_bias: bool = option(False, "the output of attention has a bias")
    qk_norm: bool = option(False, "RMSNorm of queries and keys, head by head, before positions")
    recurrence: Literal["below", "same"] = option(
        "below",
        "what a layer keeps in memory: below: its inputs; same: its outputs, which reach back"
        " without limit",
    )
    position: str = option(
        "rel_sinusoid", "position encoding, see docs/encodings.md", section="position encoding"
    )
    untie_r: bool = option(
        False, "each layer has its own position parameters (such as u and v) instead of shared ones"
    )
    attention: str = option(
        "softmax",
        "attention rule; performer: random features, linear in the length; lsh: within the buckets"
        " of a hash",
        section="attention rule",
    )

    memory: str = option(
        "fifo", "what is kept of earlier segments, see docs/memory.md", section="memory"
    )
    own: dict[str, Any] = field(default_factory=dict, metadata=OWN)
    """The settings of the parts that it names, see `NamesParts`; each is a dataclass `Settings`
    beside its part.
    """

    def __post_init__(self) -> None:
        if self.d_embed < 0:
            object.__setattr__(self, "d_embed", self.d_model)
        super().__post_init__()
        if self.d_model % 2:
            has_sinusoids = any(getattr(part, "has_sinusoids", False) for part in self._parts())
            even = f"must be even for as many sines as cosines; use {self.d_model + 1}"
            require(not has_sinusoids, f"--d_model {self.d_model}: {even}")
        for settings in self.of_parts():
            settings.require_fits(self)
        for name, choices in (("activation", ACTIVATIONS), ("norm", NORMS)):
            given = getattr(self, name)
            there = ", ".join(choices)
            require(given in choices, f"--{name} {given}: no such choice; there are {there}")
        require(
            self.n_head % self.n_key_head == 0,
            f"--n_kv_head {self.n_kv_head}: --n_head {self.n_head} is no multiple of it; each head"
            " of keys is read by as many heads of queries",
        )
        invertible = not self.reversible or self.pre_lnorm
        require(
            invertible,
            "--reversible needs --pre_lnorm: LayerNorm after a residual connection cannot be"
            " inverted",
        )
        if self.parallel:
            require(self.pre_lnorm, "--parallel needs --pre_lnorm: both nets read a normed input")
            is_plain = self.gate == "none" and not self.reversible
            require(
                is_plain, "--parallel: works neither with --gate nor with --reversible; drop one"
            )
        if self.gate != "none":
            require(
                self.pre_lnorm,
                f"--gate {self.gate} needs --pre_lnorm: it keeps a path that nothing changes",
            )
            require(
                not self.reversible,
                f"--gate {self.gate} and --reversible: a gate cannot be inverted; drop one",
            )
        object.__setattr__(self, "cutoffs", tuple(self.cutoffs))
        object.__setattr__(self, "adaptive", self.adaptive or bool(self.cutoffs))
        object.__setattr__(self, "tie_projs", tuple(self.tie_projs))
        self._check_cutoffs()

    def of_parts(self) -> Iterator[PartSettings]:
        """The settings of its parts."""
        for registry in self.parts:
            name = getattr(self, registry.flag)
            if registry.own(name):
                settings = self.settings(settings_of(registry[name]))
                if isinstance(settings, PartSettings):
                    yield settings

    @property
    def n_key_head(self) -> int:
        """Heads of keys and values."""
        if self.n_kv_head is None:
            return self.n_head
        return self.n_kv_head

    def _check_cutoffs(self) -> None:
        given = " ".join(map(str, self.cutoffs))
        borders = (0, *self.cutoffs)
        ascending = all(a < b for a, b in pairwise(borders))
        require(
            ascending,
            f"--cutoffs {given}: must be positive and ascending, with no rank named twice",
        )
        inside = not self.cutoffs or borders[-1] < self.n_token
        require(
            inside,
            f"--cutoffs {given}: beyond the vocabulary of {self.n_token} words; the last must be"
            " below it",
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
class Context(Checked):
    """How far a forward pass looks back, in tokens. Not part of the weights: evaluation may look
    back further than training did.
    """

    tgt_len: int = option(70, "tokens predicted per segment", section="context", **SIZE)
    mem_len: int = option(
        0, "tokens of memory: hidden states of earlier segments that are attended to", **LENGTH
    )
    compressed_len: int | None = option(
        None, f"{COMPRESSED_LEN_HELP} (not given: mem_len)", **LENGTH
    )
    lookup_len: int = option(4096, LOOKUP_LEN_HELP, **LOOKUP)
    ext_len: int = option(
        0, "tokens before the segment that are read again instead of remembered", **LENGTH
    )
    same_length: bool = option(False, SAME_LENGTH_HELP)
    clamp_len: int = option(-1, CLAMP_LEN_HELP, minimum=-1, below=2**31)

    def __post_init__(self) -> None:
        super().__post_init__()
        sees_keys = not self.same_length or self.mem_len > 0
        require(
            sees_keys,
            "--same_length needs --mem_len > 0 for a key to see; give a memory, or"
            " --no_same_length",
        )

    @property
    def n_compressed(self) -> int:
        """The largest number of compressed states."""
        if self.compressed_len is None:
            return self.mem_len
        return self.compressed_len

    @property
    def reach(self) -> int:
        """Tokens of the memory or of a segment, whichever are more: in a context limited to a text
        those of the text.
        """
        return max(self.mem_len, self.tgt_len + self.ext_len)

    def as_asked(self, reading: Any, **lengths: int | None) -> "Context":
        """A copy with those of its fields that a configuration of a reading gives, and not as
        several to compare, and with these lengths. All are laid over the old ones at once: whether
        they go together is judged of the new.
        """
        given = {}
        for f in fields(self):
            given[f.name] = getattr(reading, f.name, None)
        single = {}
        for name, value in given.items():
            if not isinstance(value, tuple):
                single[name] = value
        return self.overlaid(**single | lengths)

    def at_most(self, n_token: int, *others: str) -> "Context":
        """A copy in which the lengths of memories, and the others that are named, are at most
        n_token; those that are not given stay so.
        """
        names = ("mem_len", "compressed_len", "lookup_len", *others)
        given = {name: getattr(self, name) for name in names}
        return self.overlaid(
            **{name: min(length, n_token) for name, length in given.items() if length is not None}
        )

    def overlaid(self, **given: int | bool | None) -> "Context":
        """A copy with the given values; None: not given."""
        return replace(self, **{name: value for name, value in given.items() if value is not None})


def as_dict(config: Any) -> dict[str, Any]:
    """The fields of a configuration as JSON-ready values."""
    values = {}
    for f in fields(config):
        values[f.name] = getattr(config, f.name)
    return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}


def as_words(settings: Mapping[str, Any]) -> list[str]:
    """Settings as words of a command line, for people to type."""
    words: list[str] = []
    for name, value in settings.items():
        if isinstance(value, bool):
            words.append(f"--{'' if value else 'no_'}{name}")
        elif isinstance(value, list | tuple):
            words += [f"--{name}", *map(str, value)]
        elif value is not None:
            words += [f"--{name}", str(value)]
    return words
