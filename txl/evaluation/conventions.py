"""Evaluation protocols: ours, and those of other implementations, which reproduce their published figures.

They differ in what a token sees and in the initial memory. How the text is cut is in the text library: the others drop
the remainder and never predict the first token of a stream (`txl.data_utils.rows.equal_streams`).
"""

import dataclasses

from torch import Tensor

from txl.config import Context, require
from txl.evaluation.reading import Predictor, Reading, warmup_segments, within
from txl.memory import Memory
from txl.model.cuda_graph import with_cuda_graphs
from txl.model.transformer import AnyMemory, TransformerXL


def reading_of(convention: str, model: TransformerXL, context: Context, *, n_token: int) -> Reading:
    """How a convention reads a text of n_token tokens.

    Raises:
        UsageError: see `context_of`.
    """
    seen = context_of(convention, context)
    predictor = predictor_of(convention, model, seen)
    if convention != "huggingface":  # its memory starts full, so a longer one gives another result
        seen = within(seen, n_token)
    return Reading(context, seen, n_warmup_of(convention, context, seen, n_layer=model.config.n_layer), predictor)


def context_of(convention: str, context: Context) -> Context:
    """Our context setting that is equivalent to `context` in another implementation.

    NVIDIA's `same_length` shows mem_len + 1 keys (DeepLearningExamples, Transformer-XL, mem_transformer.py), including
    the token itself; the original's and ours shows mem_len.

    Raises:
        UsageError: if the implementation does not support the setting.
    """
    require(
        convention != "huggingface" or context.ext_len == 0,
        f"--ext_len {context.ext_len}: Hugging Face's model has none; --convention huggingface needs --ext_len 0",
    )
    if convention == "nvidia" and context.same_length:
        return dataclasses.replace(context, mem_len=context.mem_len + 1)
    return context


def n_warmup_of(convention: str, context: Context, seen: Context, *, n_layer: int) -> int:
    """Number of unscored segments before the first scored one.

    Ours: as many as give the result of a single stream. NVIDIA's: as many as hold mem_len tokens. Others: none.

    Args:
        context: as requested.
        seen: `context_of` it.
    """
    if convention == "txl":
        return warmup_segments(n_layer, seen)
    return -(-context.mem_len // context.tgt_len) if convention == "nvidia" else 0


def predictor_of(convention: str, model: TransformerXL, context: Context) -> Predictor:
    """The model, with the memory handling of the convention."""
    if convention == "original" and context.ext_len:
        return OriginalMemory(model)
    if convention == "huggingface":
        return ZeroMemory(model, context.mem_len)
    return with_cuda_graphs(model)


class OriginalMemory:
    """A model whose memory is updated as in kimiyoung/transformer-xl, where two swapped arguments matter.

    There `_update_mems(hids, mems, qlen, mlen)` is called with (mlen, qlen), and keeps tokens up to
    qlen + max(0, mlen - ext_len) instead of mlen + max(0, qlen - ext_len): a memory shorter than ext_len holds tokens
    that the next segment reads again. Equivalently, the number of tokens left out is at most the memory's length.
    """

    def __init__(self, model: TransformerXL) -> None:
        self.model = model

    def fresh_memory(self, batch_size: int) -> AnyMemory:
        """An empty memory."""
        return self.model.fresh_memory(batch_size)

    def nll(self, input_BT: Tensor, target_BT: Tensor, memory: AnyMemory, context: Context) -> tuple[Tensor, AnyMemory]:
        """See `TransformerXL.nll`."""
        context = dataclasses.replace(context, ext_len=min(context.ext_len, memory.length))
        return self.model.nll(input_BT, target_BT, memory, context)


class ZeroMemory:
    """A model whose memory starts as mem_len zero vectors, which are attended to like real hidden states.

    Source: transformers 4.35.2, `TransfoXLModel.init_mems`; kimiyoung/transformer-xl's TensorFlow code does the same.
    """

    def __init__(self, model: TransformerXL, mem_len: int) -> None:
        self.model, self.mem_len, self.nll = model, mem_len, model.nll

    def fresh_memory(self, batch_size: int) -> Memory:
        """Zeros, (B, mem_len, D) for each layer."""
        like = self.model.layers[0].attn.k_net.weight
        zeros_BMD = like.new_zeros(batch_size, self.mem_len, self.model.config.d_model)
        return Memory((zeros_BMD,) * self.model.config.n_layer)
