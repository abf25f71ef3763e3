"""The functions of `tiles` as Triton kernels: a tile is read once, or read and written once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096


def add_statistics(logit_TU: Tensor, bias_U: Tensor, target_T: Tensor, lse_T: Tensor, target_logit_T: Tensor) -> None:
    """As in `tiles`; a program per token."""
    n_token, n_word = logit_TU.shape
    if n_token and n_word:
        block = min(_BLOCK, triton.next_power_of_2(n_word))
        with torch.cuda.device_of(logit_TU):
            _add_statistics[(n_token,)](
                logit_TU, bias_U, target_T, lse_T, target_logit_T, n_word, logit_TU.stride(0), block=block
            )


def logit_gradient(logit_TU: Tensor, bias_U: Tensor, target_T: Tensor, lse_T: Tensor, grad_T: Tensor) -> Tensor:
    """As in `tiles`, in place; a program per token and block of words."""
    n_token, n_word = logit_TU.shape
    if n_token and n_word:
        block = min(_BLOCK, triton.next_power_of_2(n_word))
        grid = (n_token, triton.cdiv(n_word, block))
        with torch.cuda.device_of(logit_TU):
            _logit_gradient[grid](logit_TU, bias_U, target_T, lse_T, grad_T, n_word, logit_TU.stride(0), block=block)
    return logit_TU


@triton.jit
def _add_statistics(logits, biases, targets, lses, target_logits, n_word, stride, block: tl.constexpr):
    token = tl.program_id(0)
    row = logits + token.to(tl.int64) * stride
    top = -float("inf")
    total = 0.0
    for first in range(0, n_word, block):
        word = first + tl.arange(0, block)
        logit = tl.load(row + word, mask=word < n_word, other=-float("inf")).to(tl.float32)
        logit += tl.load(biases + word, mask=word < n_word, other=0.0).to(tl.float32)
        new_top = tl.maximum(top, tl.max(logit, 0))
        total = total * tl.exp(top - new_top) + tl.sum(tl.exp(logit - new_top), 0)
        top = new_top
    before = tl.load(lses + token)
    new_top = tl.maximum(top, before)
    total = total * tl.exp(top - new_top) + tl.exp(before - new_top)
    tl.store(lses + token, new_top + tl.log(total))
    target = tl.load(targets + token)
    is_here = (target >= 0) & (target < n_word)
    logit = tl.load(row + target, mask=is_here, other=0.0).to(tl.float32)
    logit += tl.load(biases + target, mask=is_here, other=0.0).to(tl.float32)
    tl.store(target_logits + token, tl.load(target_logits + token) + logit)


@triton.jit
def _logit_gradient(logits, biases, targets, lses, grads, n_word, stride, block: tl.constexpr):
    token = tl.program_id(0)
    word = tl.program_id(1) * block + tl.arange(0, block)
    place = logits + token.to(tl.int64) * stride + word
    logit = tl.load(place, mask=word < n_word, other=0.0).to(tl.float32)
    logit += tl.load(biases + word, mask=word < n_word, other=0.0).to(tl.float32)
    prob = tl.exp(logit - tl.load(lses + token))
    grad = tl.where(word == tl.load(targets + token), prob - 1.0, prob) * tl.load(grads + token)
    tl.store(place, grad.to(logits.dtype.element_ty), mask=word < n_word)
