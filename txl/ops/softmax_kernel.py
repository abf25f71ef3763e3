"""The softmax of logits and their gradients in one kernel, in Triton.

Of each row, with the target t: nats = log(sum_w exp(x_w)) - x_t, and dx_w = exp(x_w) / sum - [w = t].
Of a row without a target (-1) both are 0. A row is read twice and written once; sums are in float32.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

LOWEST = tl.constexpr(-3.0e38)
_BLOCK = 4096


@triton.jit
def _gradients(logit_ptr, target_ptr, nats_ptr, n_word, D: tl.constexpr):
    """A program computes a row; each of D places has a sum and a maximum of its own until the end."""
    row = tl.program_id(0).to(tl.int64)
    first = logit_ptr + row * n_word
    target = tl.load(target_ptr + row)
    top_D = tl.full((D,), LOWEST, tl.float32)
    sum_D = tl.zeros((D,), tl.float32)
    own_D = tl.zeros((D,), tl.float32)
    for begin in range(0, n_word, D):
        word_D = begin + tl.arange(0, D)
        x_D = tl.load(first + word_D, mask=word_D < n_word, other=LOWEST).to(tl.float32)
        higher_D = tl.maximum(top_D, x_D)
        sum_D = sum_D * tl.exp(top_D - higher_D) + tl.exp(x_D - higher_D)
        top_D = higher_D
        own_D += tl.where(word_D == target, x_D, 0.0)
    top = tl.max(top_D, 0)
    log_sum = top + tl.log(tl.sum(sum_D * tl.exp(top_D - top), 0))
    counts = target >= 0
    tl.store(nats_ptr + row, tl.where(counts, log_sum - tl.sum(own_D, 0), 0.0))
    for begin in range(0, n_word, D):
        word_D = begin + tl.arange(0, D)
        x_D = tl.load(first + word_D, mask=word_D < n_word, other=LOWEST).to(tl.float32)
        dx_D = tl.exp(x_D - log_sum) - tl.where(word_D == target, 1.0, 0.0)
        dx_D = tl.where(counts, dx_D, 0.0)
        tl.store(first + word_D, dx_D.to(logit_ptr.dtype.element_ty), mask=word_D < n_word)


def gradients_in_place(logit_CV: Tensor, target_C: Tensor) -> Tensor:
    """Nats of the targets, (C,), in float32. The gradients of these take the place of the logits,
    which are contiguous and in float32, bfloat16 or float16; C is at least 1.

    Tensors must be on a GPU, or anywhere if TRITON_INTERPRET=1 was set before Triton was first
    imported.
    """
    n_token, n_word = logit_CV.shape
    nats_C = torch.empty(n_token, dtype=torch.float32, device=logit_CV.device)
    block = min(_BLOCK, triton.next_power_of_2(n_word))
    kernel: Any = _gradients  # a type checker does not understand kernel launches
    with torch.cuda.device_of(logit_CV):  # Triton launches on the current device
        kernel[(n_token,)](logit_CV, target_C, nats_C, n_word, D=block, num_warps=8)
    return nats_C
