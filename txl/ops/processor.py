"""What is known about this computer's processor."""

import os
import platform
import re
from pathlib import Path


def _facts() -> str:
    try:
        with Path("/proc/cpuinfo").open() as file:
            return file.read(2**14)  # of the first cores: the whole takes long where there are many
    except OSError:
        return ""


_FACTS = _facts()
_WORDS = frozenset(_FACTS.split())

NAME = found[1] if (found := re.search(r"model name\s*: (.+)", _FACTS)) else platform.machine()

IS_AMD = "AuthenticAMD" in _WORDS
HAS_AVX512 = "avx512f" in _WORDS and "ONEDNN_MAX_CPU_ISA" not in os.environ
"""Registers of 512 bits, which oneDNN may use."""
HAS_FAST_BFLOAT16 = bool({"avx512_bf16", "amx_bf16"} & _WORDS) and "ONEDNN_MAX_CPU_ISA" not in os.environ
"""Products in bfloat16 take a fraction of the time of float32: the processor has instructions for them, and oneDNN,
which computes them, is not restricted in its instructions."""
