"""Transformer-XL (Dai et al. 2019): `txl.load` for trained models, `TransformerXL` for new ones,
`MemoryTransformer` for vectors in place of words.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from txl.agents import AgentMemory, MemoryTransformer
    from txl.config import Context, ModelConfig
    from txl.language.kept_memory import KeptMemory, load_memory
    from txl.language.model import LanguageModel, load
    from txl.model.span import Span
    from txl.model.streams import Memory
    from txl.model.transformer import TransformerXL
    from txl.plugins import plugin

__version__ = "0.3.0"
__all__ = [
    "AgentMemory",
    "Context",
    "KeptMemory",
    "LanguageModel",
    "Memory",
    "MemoryTransformer",
    "ModelConfig",
    "Span",
    "TransformerXL",
    "__version__",
    "load",
    "load_memory",
    "plugin",
]
_HOMES = {
    "plugin": "plugins",
    "load": "language.model",
    "load_memory": "language.kept_memory",
    "KeptMemory": "language.kept_memory",
    "LanguageModel": "language.model",
    "Context": "config",
    "ModelConfig": "config",
    "Memory": "model.streams",
    "Span": "model.span",
    "AgentMemory": "agents",
    "MemoryTransformer": "agents",
}


def __dir__() -> list[str]:
    """What there is, imported yet or not."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Import on first use: PyTorch takes seconds."""
    if name not in __all__:
        raise AttributeError(f"module 'txl' has no attribute {name!r}")
    return getattr(import_module(f"txl.{_HOMES.get(name, 'model.transformer')}"), name)
