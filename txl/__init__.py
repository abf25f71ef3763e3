"""Transformer-XL: the model library. It knows tensors, never files of text."""

from txl.config import Context, ModelConfig
from txl.memory import Memory, Span
from txl.model.transformer import TransformerXL

__version__ = "0.2.0"
__all__ = ["Context", "Memory", "ModelConfig", "Span", "TransformerXL", "__version__"]
