"""Keys and values of several heads, and how they are stored."""

import torch
from torch import Tensor


def with_memory(mem_BNMH: Tensor, x_BNTH: Tensor) -> Tensor:
    """[memory, segment], (B, N, S, H). On a CPU stored heads first, as `rel_attention.dense` reads
    them; on a GPU as projected, which takes less time to join."""
    if x_BNTH.device.type == "cpu":
        mem_BNMH = mem_BNMH.transpose(0, 1)
        x_BNTH = x_BNTH.transpose(0, 1)
        return torch.cat([mem_BNMH, x_BNTH], dim=2).transpose(0, 1)
    return torch.cat([mem_BNMH.transpose(1, 2), x_BNTH.transpose(1, 2)], dim=1).transpose(1, 2)
