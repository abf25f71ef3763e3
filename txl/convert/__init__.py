"""Checkpoints of other programs, in and out. One file a source."""

from txl.convert.huggingface import from_huggingface
from txl.convert.kimiyoung import from_kimiyoung, to_kimiyoung
from txl.convert.recognise import Converted, convert

__all__ = ["Converted", "convert", "from_huggingface", "from_kimiyoung", "to_kimiyoung"]
