"""Position encodings: a new one is a new file here and a line in the registry."""

from importlib import import_module

from txl.config import Context, ModelConfig, UsageError, require
from txl.positions.base import PositionEncoding

_CLASSES = {
    "rel_sinusoid": "RelSinusoid",
    "learned_relative": "LearnedRelative",
    "sinusoid_input": "SinusoidInput",
    "learned_per_layer": "LearnedPerLayer",
    "learned_absolute": "LearnedAbsolute",
    "rotary": "Rotary",
    "t5": "T5",
    "shaw": "Shaw",
    "relative_keys": "RelativeKeys",
    "deberta": "Deberta",
    "floater": "Floater",
    "alibi": "Alibi",
    "none": "NoPosition",
}
"""The class of each encoding, in the file of the encoding's name."""

POSITION_ENCODINGS: dict[str, type[PositionEncoding]] = {
    name: getattr(import_module(f"{__name__}.{name}"), cls) for name, cls in _CLASSES.items()
}


def build_position_encodings(config: ModelConfig, *, dropout: float = 0.0) -> list[PositionEncoding]:
    """One encoding per layer; parameters in the class's `shared` are the same object in all, unless `untie_r`.

    Raises:
        UsageError: if there is no such encoding, or it does not support these sizes.
    """
    require(
        config.position in POSITION_ENCODINGS,
        f"--position {config.position}: no such encoding; there are {', '.join(POSITION_ENCODINGS)}",
    )
    cls = POSITION_ENCODINGS[config.position]
    first, *rest = (cls(config, dropout=dropout) for _ in range(config.n_layer))
    for layer, encoding in enumerate(rest, start=1):
        encoding.layer = layer
        for name in () if config.untie_r else cls.shared:
            setattr(encoding, name, getattr(first, name))
    return [first, *rest]


def require_serves(encoding: PositionEncoding, context: Context, *, can_change: bool = True) -> None:
    """Raise `UsageError` if the encoding does not support this context.

    Args:
        can_change: another encoding can be chosen, as for a new model; False: the model is trained.
    """
    if encoding.clamps or context.clamp_len <= 0:
        return
    of_distances = [name for name, cls in POSITION_ENCODINGS.items() if cls.clamps and cls.needs_scores()]
    change = f", or use --position {' or '.join(of_distances)}" if can_change else ""
    raise UsageError(
        f"--clamp_len {context.clamp_len}: --position {encoding.name} has no distances that could be "
        f"clamped; leave it out (-1){change}"
    )
