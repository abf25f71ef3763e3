"""Position encodings, a file each."""

from txl.model.parts import build_position_encodings, require_serves
from txl.positions.base import PositionEncoding
from txl.registry import POSITIONS

POSITION_ENCODINGS = POSITIONS
