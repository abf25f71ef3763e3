"""Position encodings: a new one is a new file here and a line in the registry."""

from txl.config import ModelConfig
from txl.positions.base import PositionEncoding
from txl.positions.rel_sinusoid import RelSinusoid

POSITION_ENCODINGS: dict[str, type[PositionEncoding]] = {
    "rel_sinusoid": RelSinusoid,
}


def build_position_encodings(config: ModelConfig, *, dropout: float = 0.0) -> list[PositionEncoding]:
    """One encoding per layer; what its class declares `shared` is the same object in all, unless `untie_r`."""
    cls = POSITION_ENCODINGS[config.position]
    first, *rest = (cls(config, dropout=dropout) for _ in range(config.n_layer))
    if not config.untie_r:
        for encoding in rest:
            for name in cls.shared:
                setattr(encoding, name, getattr(first, name))
    return [first, *rest]
