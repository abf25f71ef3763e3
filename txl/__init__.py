"""Transformer-XL: the model, training, evaluation and generation."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from txl.config import Context, ModelConfig
    from txl.memory import Memory, Span
    from txl.model.transformer import TransformerXL

__version__ = "0.2.0"
__all__ = ["Context", "Memory", "ModelConfig", "Span", "TransformerXL", "__version__"]
_HOMES = {"Context": "config", "ModelConfig": "config", "Memory": "memory", "Span": "memory"}


def __getattr__(name: str) -> Any:
    """Import on first use: PyTorch takes seconds."""
    if name not in __all__:
        raise AttributeError(f"module 'txl' has no attribute {name!r}")
    return getattr(import_module(f"txl.{_HOMES.get(name, 'model.transformer')}"), name)
