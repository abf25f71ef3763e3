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


class Row(NamedTuple):
    """What is known of a part before it is imported."""

    place: str
    own: tuple[str, ...]
    also: tuple[str, ...]

    @classmethod
    def parsed(cls, text: str) -> "Row":
        """`module:Class own own + also also`."""
        mine, _, also = text.partition(" + ")
        place, *own = mine.split()
        return cls(place, tuple(own), tuple(also.split()))


class Registry(Mapping[str, Any]):
    """The classes of one kind of part, by name; those of files of your own too, see `txl.plugins`.

    Args:
        flag: that names one.
        kind: what they are, for messages.
        places: by name, `module:Class`, then its own settings, then after a + the general settings
            (of all models or trainings) that it reads. So settings are known before a part is
            imported.
        base: the place of the class that those of files of your own derive from; empty: files
            cannot add any, or know them by their members.
    """

    def __init__(self, flag: str, kind: str, places: Mapping[str, str], *, base: str = "") -> None:
        self.flag = flag
        self.kind = kind
        self._rows = {name: Row.parsed(place) for name, place in places.items()}
        self._base = base
        self._added: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        self.require_known(name)
        if name in self._added:
            return self._added[name]
        return _at(self._rows[name].place)

    def own(self, name: str) -> tuple[str, ...]:
        """The settings of its own that a part has; of one that is not known none."""
        return self._row(name).own

    def fields(self, name: str) -> tuple[Field, ...]:
        """The same as fields; the part is imported if there are any."""
        if self.own(name):
            return fields(settings_of(self[name]))
        return ()

    def readers(self, setting: str) -> tuple[str, ...]:
        """Names of the parts that read a setting."""
        found = []
        for name in self:
            row = self._row(name)
            if setting in row.own or setting in row.also:
                found.append(name)
        return tuple(found)

    def owners(self, setting: str) -> tuple[str, ...]:
        """Names of the parts that have a setting of their own."""
        return tuple(name for name in self if setting in self._row(name).own)

    def _row(self, name: str) -> "Row":
        if name in self._added:
            part = self._added[name]
            own = tuple(f.name for f in fields(settings_of(part)))
            return Row("", own, tuple(_read_by(part) - set(own)))
        return self._rows.get(name, Row("", (), ()))

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
        return (_at(row.place) for row in self._rows.values())

    def __setitem__(self, name: str, part: Any) -> None:
        self._added[name] = part

    def __delitem__(self, name: str) -> None:
        del self._added[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows | self._added)

    def __len__(self) -> int:
        return len(self._rows | self._added)

    def __contains__(self, name: object) -> bool:
        return name in self._rows or name in self._added


@functools.cache  # a start asks for each part some hundred times
def _at(place: str) -> Any:
    """What stands at `module:name`."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


POSITIONS = Registry(
    "position",
    "encoding",
    {
        "rel_sinusoid": "txl.positions.rel_sinusoid:RelSinusoid + attn_impl attn_keep_mib untie_r",
        "learned_relative": "txl.positions.learned_relative:LearnedRelative n_position",
        "sinusoid_input": "txl.positions.sinusoid_input:SinusoidInput count_back",
        "learned_per_layer": "txl.positions.learned_per_layer:LearnedPerLayer n_position count_back",
        "learned_absolute": "txl.positions.learned_absolute:LearnedAbsolute n_position + untie_r",
        "rotary": "txl.positions.rotary:Rotary rope_base rope_part rope_scaling rope_factor "
        "rope_low rope_high rope_trained_len rope_attention rope_truncate rope_short "
        "rope_long",
        "t5": "txl.positions.t5:T5 max_distance n_bucket + untie_r",
        "shaw": "txl.positions.shaw:Shaw max_distance",
        "relative_keys": "txl.positions.relative_keys:RelativeKeys n_position + attn_impl "
        "attn_keep_mib untie_r",
        "deberta": "txl.positions.deberta:Deberta max_distance + untie_r",
        "floater": "txl.positions.floater:Floater + untie_r",
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
        "performer": "txl.attention_rules.performer:PerformerAttention n_feature + redraw_interval",
        "lsh": "txl.attention_rules.lsh:LshAttention lsh_round lsh_bucket lsh_reach + "
        "redraw_interval",
    },
)
MEMORIES = Registry(
    "memory",
    "memory",
    {
        "fifo": "txl.model.memory:Fifo",
        "none": "txl.memory.none:NoMemory",
        "sinks": "txl.memory.sinks:Sinks n_sink",
        "compressive": "txl.memory.compressive:Compressive compress_rate compression compress_loss + "
        "compressed_len",
        "expire_span": "txl.memory.expire_span:ExpireSpan max_span span_ramp span_loss spans_of",
        "infini": "txl.memory.infini:Infini memory_gate infini_update",
        "knn": "txl.memory.knn:Knn memory_gate lookup_layer lookup_k + lookup_len",
        "neural": "txl.memory.neural:Neural memory_gate neural_layers rates_of forgets_to",
        "recurrent_tokens": "txl.memory.recurrent_tokens:RecurrentTokens n_memory_token tokens_of",
    },
    base="txl.model.rule:MemoryRule",
)
STACKS = Registry("stack", "way to run layers", {"reversible": "txl.stacks.reversible:run"})
LAYERS = Registry("layer", "layer", {"parallel": "txl.stacks.parallel:ParallelLayer"})
GATES = Registry(
    "gate",
    "gate",
    {
        "gru": "txl.stacks.gates:GRUGate gate_bias",
        "input": "txl.stacks.gates:InputGate",
        "output": "txl.stacks.gates:OutputGate gate_bias",
        "highway": "txl.stacks.gates:HighwayGate gate_bias",
        "sigmoid_tanh": "txl.stacks.gates:SigmoidTanhGate gate_bias",
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
        "adam": "txl.training.update_rules:Adam beta1 beta2 epsilon",
        "adamw": "txl.training.update_rules:AdamW beta1 beta2 epsilon",
        "sgd": "txl.training.update_rules:SGD mom",
        "adagrad": "txl.training.update_rules:Adagrad",
        "lamb": "txl.training.update_rules:LAMB beta1 beta2 epsilon",
        "muon": "txl.training.update_rules:MuonAndAdamW beta1 beta2 epsilon muon_positions",
    },
    base="txl.training.update_rules:UpdateRule",
)
SCHEDULES = Registry(
    "scheduler",
    "schedule",
    {
        "cosine": "txl.training.schedules:Cosine eta_min",
        "inv_sqrt": "txl.training.schedules:InverseSquareRoot",
        "dev_perf": "txl.training.schedules:DevPerf decay_rate patience lr_min",
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
        "rms": "txl.evaluation.test_time.dynamic:RMS dynamic_epsilon dynamic_segments",
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


def names_of_settings(registries: Iterable[Registry]) -> list[str]:
    """Names of the settings of all parts, each once."""
    names: dict[str, None] = {}
    for registry in registries:
        for part in registry:
            names |= dict.fromkeys(registry.own(part))
    return list(names)


def setting_in(registries: Iterable[Registry], name: str) -> Field | None:
    """The setting of this name of the first part that has one; no other part is imported."""
    for registry in registries:
        for part in registry.owners(name):
            return next(f for f in registry.fields(part) if f.name == name)
    return None


def settings_of_package(registries: Iterable[Registry]) -> dict[str, Field]:
    """The settings of all parts that no file of your own has added, by name."""
    found: dict[str, Field] = {}
    for registry in registries:
        for part in registry.of_package():
            for f in fields(settings_of(part)):
                found.setdefault(f.name, f)
    return found


def settings_before(memory: str) -> Mapping[str, Any]:
    """Settings that models with this memory have where they were saved before there were such, as
    far as these are not the defaults. Of a memory in a file that has not been run: none.
    """
    if memory in MEMORIES and MEMORIES.own(memory):
        return MEMORIES[memory].when_missing
    return {}


def reads(part: Any) -> frozenset[str]:
    """The settings of its own that a part reads."""
    return frozenset(f.name for f in fields(settings_of(part)))


def default_of(f: Field) -> Any:
    """The default of a setting."""
    if f.default is not MISSING:
        return f.default
    assert f.default_factory is not MISSING, f"{f.name}: give it a default"
    return f.default_factory()


def _read_by(part: Any) -> frozenset[str]:
    """The settings that a part of a file of your own reads: its own, and general ones."""
    if hasattr(part, "reads"):
        return part.reads()
    if hasattr(part, "redraw"):
        return reads(part) | {"redraw_interval"}
    return reads(part)


def readers(name: str) -> dict[str, tuple[str, ...]]:
    """The parts of a model that read a setting, by the flag that chooses one of them; the flags of
    kinds without such a part are left out. Empty: every model uses it.
    """
    found = {}
    for registry in PARTS:
        who = registry.readers(name)
        if who:
            found[registry.flag] = who
    return found


def is_read(name: str, shape: Any) -> bool:
    """True if a part that a model's configuration chooses reads a setting, or it is a general one."""
    who = readers(name)
    return not who or any(getattr(shape, flag) in names for flag, names in who.items())
