"""What is known about this computer's processor."""

import os
import platform
import re
from pathlib import Path
from typing import NamedTuple


class Processor(NamedTuple):
    """The answers to what this project asks of a processor."""

    name: str
    is_amd: bool
    has_avx512: bool
    has_fast_bfloat16: bool


def described(cpuinfo: str, *, is_restricted: bool) -> Processor:
    """The processor that a text in the format of Linux's /proc/cpuinfo is about.

    Args:
        is_restricted: oneDNN, which computes the products, may not use all instructions.
    """
    words = frozenset(cpuinfo.split())
    name = re.search(r"model name\s*: (.+)", cpuinfo)
    return Processor(
        name=name[1] if name else platform.machine(),
        is_amd="AuthenticAMD" in words,
        has_avx512="avx512f" in words and not is_restricted,
        has_fast_bfloat16=not words.isdisjoint({"avx512_bf16", "amx_bf16"}) and not is_restricted,
    )


def _cpuinfo() -> str:
    try:
        with Path("/proc/cpuinfo").open() as file:
            return file.read(2**14)  # of the first cores: the whole takes long where there are many
    except OSError:
        return ""


_THIS = described(_cpuinfo(), is_restricted="ONEDNN_MAX_CPU_ISA" in os.environ)

NAME = _THIS.name
IS_AMD = _THIS.is_amd
HAS_AVX512 = _THIS.has_avx512
"""Registers of 512 bits, which oneDNN may use."""
HAS_FAST_BFLOAT16 = _THIS.has_fast_bfloat16
"""Products in bfloat16 take a fraction of the time of float32: the processor has instructions for
them, and oneDNN, which computes them, is not restricted in its instructions.
"""
