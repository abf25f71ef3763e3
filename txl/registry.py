"""Parts that a name chooses: a file each, imported when it is asked for; and which of them read a
setting.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from importlib import import_module
from typing import Any, NamedTuple

from txl.errors import UsageError


class NoSuchPart(UsageError, KeyError):
    """A name that is not in a registry."""

    __str__ = Exception.__str__  # a KeyError quotes its message


class Registry(Mapping[str, Any]):
    """The classes of one kind of part, by name; those of files of your own too, see `txl.plugins`.

    Args:
        flag: that names one.
        kind: what they are, for messages.
        places: of each name the module and the class in it, as `module:Class`.
        base: the place of the class that those of files of your own derive from; empty: files
            cannot add any, or know them by their members.
    """

    def __init__(self, flag: str, kind: str, places: Mapping[str, str], *, base: str = "") -> None:
        self.flag = flag
        self.kind = kind
        self._places = dict(places)
        self._base = base
        self._added: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        self.require_known(name)
        if name in self._added:
            return self._added[name]
        return _at(self._places[name])

    def require_known(self, name: str) -> None:
        """Raise `NoSuchPart` if there is none of this name."""
        if name not in self:
            raise NoSuchPart(
                f"--{self.flag} {name}: no such {self.kind}; there are {', '.join(self)}; the file"
                " that defines one of your own is named with --plugin"
            )

    @property
    def base(self) -> Any:
        """The class that those of files of your own derive from; None: there is none."""
        if self._base:
            return _at(self._base)
        return None

    def of_package(self) -> Iterator[Any]:
        """The classes that no file of your own has added."""
        return map(_at, self._places.values())

    def __setitem__(self, name: str, part: Any) -> None:
        self._added[name] = part

    def __delitem__(self, name: str) -> None:
        del self._added[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places | self._added)

    def __len__(self) -> int:
        return len(self._places | self._added)

    def __contains__(self, name: object) -> bool:
        return name in self._places or name in self._added


@functools.cache  # a start asks for each part some hundred times
def _at(place: str) -> Any:
    """What stands at `module:name`."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


POSITIONS = Registry(
    "position",
    "encoding",
    {
        "rel_sinusoid": "txl.positions.rel_sinusoid:RelSinusoid",
        "learned_relative": "txl.positions.learned_relative:LearnedRelative",
        "sinusoid_input": "txl.positions.sinusoid_input:SinusoidInput",
        "learned_per_layer": "txl.positions.learned_per_layer:LearnedPerLayer",
        "learned_absolute": "txl.positions.learned_absolute:LearnedAbsolute",
        "rotary": "txl.positions.rotary:Rotary",
        "t5": "txl.positions.t5:T5",
        "shaw": "txl.positions.shaw:Shaw",
        "relative_keys": "txl.positions.relative_keys:RelativeKeys",
        "deberta": "txl.positions.deberta:Deberta",
        "floater": "txl.positions.floater:Floater",
        "alibi": "txl.positions.alibi:Alibi",
        "none": "txl.positions.none:NoPosition",
    },
    base="txl.positions.base:PositionEncoding",
)
ATTENTION_RULES = Registry(
    "attention",
    "rule",
    {
        "softmax": "txl.attention_rules.softmax:SoftmaxAttention",
        "performer": "txl.attention_rules.performer:PerformerAttention",
        "lsh": "txl.attention_rules.lsh:LshAttention",
    },
)
MEMORIES = Registry(
    "memory",
    "memory",
    {
        "fifo": "txl.model.memory:Fifo",
        "none": "txl.memory.none:NoMemory",
        "sinks": "txl.memory.sinks:Sinks",
        "compressive": "txl.memory.compressive:Compressive",
        "expire_span": "txl.memory.expire_span:ExpireSpan",
        "infini": "txl.memory.infini:Infini",
        "knn": "txl.memory.knn:Knn",
        "neural": "txl.memory.neural:Neural",
        "recurrent_tokens": "txl.memory.recurrent_tokens:RecurrentTokens",
    },
    base="txl.model.rule:MemoryRule",
)
STACKS = Registry("stack", "way to run layers", {"reversible": "txl.stacks.reversible:run"})
LAYERS = Registry("layer", "layer", {"parallel": "txl.stacks.parallel:ParallelLayer"})
GATES = Registry(
    "gate",
    "gate",
    {
        "gru": "txl.stacks.gates:GRUGate",
        "input": "txl.stacks.gates:InputGate",
        "output": "txl.stacks.gates:OutputGate",
        "highway": "txl.stacks.gates:HighwayGate",
        "sigmoid_tanh": "txl.stacks.gates:SigmoidTanhGate",
    },
    base="txl.stacks.gates:Gate",
)
ACTIVATIONS = Registry(
    "activation",
    "activation",
    {
        "relu": "torch.nn:ReLU",
        "gelu": "torch.nn:GELU",
        "gelu_tanh": "txl.model.activations:TanhGELU",
        "relu2": "txl.model.activations:SquaredReLU",
        "silu": "torch.nn:SiLU",
        "glu": "txl.model.activations:GLU",
        "reglu": "txl.model.activations:ReGLU",
        "geglu": "txl.model.activations:GEGLU",
        "geglu_tanh": "txl.model.activations:TanhGEGLU",
        "swiglu": "txl.model.activations:SwiGLU",
    },
)
NORMS = Registry("norm", "norm", {"layer": "torch.nn:LayerNorm", "rms": "txl.model.norms:RMSNorm"})
PARTS = (POSITIONS, ATTENTION_RULES, MEMORIES, GATES)
"""Of which a model has one each, with settings of its own."""
OPTIMIZERS = Registry(
    "optim",
    "optimizer",
    {
        "adam": "txl.training.update_rules:Adam",
        "adamw": "txl.training.update_rules:AdamW",
        "sgd": "txl.training.update_rules:SGD",
        "adagrad": "txl.training.update_rules:Adagrad",
        "lamb": "txl.training.update_rules:LAMB",
        "muon": "txl.training.update_rules:MuonAndAdamW",
    },
    base="txl.training.update_rules:UpdateRule",
)
SCHEDULES = Registry(
    "scheduler",
    "schedule",
    {
        "cosine": "txl.training.schedules:Cosine",
        "inv_sqrt": "txl.training.schedules:InverseSquareRoot",
        "dev_perf": "txl.training.schedules:DevPerf",
        "constant": "txl.training.schedules:Constant",
    },
    base="txl.training.schedules:Schedule",
)
SOURCES = Registry(
    "work_dir",
    "kind of checkpoint",
    {
        "original": "txl.convert.original:Original",
        "nvidia": "txl.convert.nvidia:Nvidia",
        "huggingface": "txl.convert.huggingface:HuggingFace",
        "llama": "txl.convert.llama:Llama",
        "gpt_neox": "txl.convert.gpt_neox:GPTNeoX",
        "unread": "txl.convert.unread:Unread",
    },
    base="txl.convert.source:Source",
)
"""Of other programs; the last one that recognises a file or folder reads it."""
DATA_SETS = Registry(
    "dataset",
    "data set",
    {
        "wt103": "txl.data_utils.plain:WT103",
        "wt2": "txl.data_utils.plain:WT2",
        "ptb": "txl.data_utils.plain:PTB",
        "enwik8": "txl.data_utils.enwik8:ENWIK8",
        "text8": "txl.data_utils.enwik8:TEXT8",
        "lm1b": "txl.data_utils.lm1b:LM1B",
        "text": "txl.data_utils.plain:TEXT",
        "pydoc": "txl.data_utils.pydoc:PYDOC",
        "bpe": "txl.data_utils.subwords:BPE",
        "pretrained": "txl.data_utils.pretrained:PRETRAINED",
        "bytes": "txl.data_utils.plain:ANY_BYTES",
        "characters": "txl.data_utils.plain:CHARACTERS",
        "ids": "txl.data_utils.ids:IDS",
    },
    base="txl.data_utils.config:DataSet",
)
"""Each is a `DataSet`, in a file with its tokenizer or its texts."""
ADAPTATION_RULES = Registry(
    "dynamic",
    "rule",
    {
        "sgd": "txl.evaluation.test_time.dynamic:SGD",
        "rms": "txl.evaluation.test_time.dynamic:RMS",
    },
    base="txl.evaluation.test_time.dynamic:AdaptationRule",
)
PARTS_OF_TRAINING = (OPTIMIZERS, SCHEDULES)
"""Of which a training has one each, with settings of its own."""
ALL_PARTS = (*PARTS, *PARTS_OF_TRAINING, ADAPTATION_RULES)
"""With settings of their own."""


@dataclass(frozen=True)
class NoSettings:
    """Of a part without settings."""


def settings_of(part: Any) -> type[Any]:
    """The dataclass of a part's settings."""
    return getattr(part, "Settings", NoSettings)


def settings_of_all(registries: Iterable[Registry] = PARTS) -> dict[str, Field]:
    """The settings of all parts by name."""
    return _settings_by_name(part for registry in registries for part in registry.values())


def settings_of_package(registries: Iterable[Registry]) -> dict[str, Field]:
    """The settings of all parts that no file of your own has added, by name."""
    return _settings_by_name(part for registry in registries for part in registry.of_package())


def _settings_by_name(parts: Iterable[Any]) -> dict[str, Field]:
    found: dict[str, Field] = {}
    for part in parts:
        for f in fields(settings_of(part)):
            found.setdefault(f.name, f)
    return found


def settings_before(memory: str) -> Mapping[str, Any]:
    """Settings that models with this memory have where they were saved before there were such, as
    far as these are not the defaults. Of a memory in a file that has not been run: none.
    """
    if memory in MEMORIES:
        return MEMORIES[memory].when_missing
    return {}


def reads(part: Any) -> frozenset[str]:
    """The settings of its own that a part reads."""
    return frozenset(f.name for f in fields(settings_of(part)))


def readers_in(registry: Registry, name: str) -> tuple[str, ...]:
    """Names of the parts that read a setting."""
    return tuple(key for key, part in registry.items() if name in reads(part))


def default_of(f: Field) -> Any:
    """The default of a setting."""
    if f.default is not MISSING:
        return f.default
    assert f.default_factory is not MISSING, f"{f.name}: give it a default"
    return f.default_factory()


AXES = ("position", "attention", "memory", "gate")
"""Flags that choose one of several, each with settings of its own."""


class Readers(NamedTuple):
    """Names of the parts that read a setting. Empty: every model uses it."""

    position: tuple[str, ...]
    attention: tuple[str, ...]
    memory: tuple[str, ...]
    gate: tuple[str, ...]


def readers(name: str) -> Readers:
    """The parts that read a setting."""
    return Readers(
        tuple(key for key, cls in POSITIONS.items() if name in cls.reads()),
        tuple(key for key, cls in ATTENTION_RULES.items() if name in read_by_rule(cls)),
        tuple(key for key, cls in MEMORIES.items() if name in cls.reads()),
        readers_in(GATES, name),
    )


def read_by_rule(rule: Any) -> frozenset[str]:
    """The settings that an attention rule reads: its own, and `redraw_interval` if it draws at
    random.
    """
    if hasattr(rule, "redraw"):
        return reads(rule) | {"redraw_interval"}
    return reads(rule)


def is_read(name: str, **chosen: str) -> bool:
    """True if one of the `chosen` (see `AXES`) reads a setting, or it is a general one."""
    who = readers(name)
    return not any(who) or any(
        chosen.get(axis) in names for axis, names in zip(AXES, who, strict=True)
    )


def chosen_by(shape: Any) -> dict[str, str]:
    """What a model's configuration chooses on each axis."""
    return {axis: getattr(shape, axis) for axis in AXES}
