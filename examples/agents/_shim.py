from typing import NamedTuple

import torch
from torch import nn

from txl import TransformerXL


class Mem(NamedTuple):
    memory: object
    age_B: torch.Tensor

    def rows(self, i):
        return Mem(self.memory.rows(i), self.age_B[i])


class MemoryTransformer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.m = TransformerXL(config)

        pass

    def forward(self, x, memory, context, reset_BT):
        B, T, _ = x.shape
        if memory is None:
            memory = Mem(self.m.empty_memory(B), torch.zeros(B, dtype=torch.int64))
        t = torch.arange(T)
        last = torch.where(reset_BT, t, -1).cummax(1).values
        since = torch.where(last >= 0, t - last, memory.age_B[:, None] + t)
        out = self.m.read(x, memory.memory, context, since)
        return out.hidden_BTD, Mem(out.memory, since[:, -1] + 1)
