"""Weights of other programs, in and out. One file a source."""

from txl.convert.kimiyoung import from_kimiyoung, to_kimiyoung

__all__ = ["from_kimiyoung", "to_kimiyoung"]
