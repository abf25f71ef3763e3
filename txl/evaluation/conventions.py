"""How a convention reads a text: what a token sees, and what the memory begins as. With those of others their figures
can be had again.

How the text is cut is in the text library: all others drop what is left over at its end and never predict the first
token of a stream (`txl.data_utils.rows.equal_streams`).
"""

import dataclasses
from dataclasses import dataclass

from torch import Tensor

from txl.config import Context, require
from txl.evaluation.score import Predictor, warmup_segments, within
from txl.memory import Memory
from txl.model.transformer import AnyMemory, TransformerXL


@dataclass(frozen=True)
class Reading:
    """How a text is read with one look-back.

    Attributes:
        asked: the look-back as asked for.
        context: the one that gives it.
        n_warmup: segments that are read before those that count.
        predictor: what predicts.
        added: what it adds to the model, in words.
    """

    asked: Context
    context: Context
    n_warmup: int
    predictor: Predictor
    added: str = ""


def reading_of(convention: str, model: TransformerXL, context: Context, *, n_token: int) -> Reading:
    """How a convention reads a text of n_token tokens.

    Raises:
        UsageError: see `context_of`.
    """
    seen = context_of(convention, context)
    predictor = predictor_of(convention, model, seen)
    if convention != "huggingface":  # whose memory begins full, so that its length makes a difference
        seen = within(seen, n_token)
    return Reading(context, seen, n_warmup_of(convention, context, seen, n_layer=model.config.n_layer), predictor)


def context_of(convention: str, context: Context) -> Context:
    """The look-back that gives what `context` means to others.

    NVIDIA's `same_length` shows mem_len + 1 keys (DeepLearningExamples, Transformer-XL, mem_transformer.py), the token
    itself among them, where the original's and ours shows mem_len.

    Raises:
        UsageError: if they know no such thing.
    """
    require(
        convention != "huggingface" or context.ext_len == 0,
        f"--ext_len {context.ext_len}: Hugging Face's model has none; --convention huggingface needs --ext_len 0",
    )
    if convention == "nvidia" and context.same_length:
        return dataclasses.replace(context, mem_len=context.mem_len + 1)
    return context


def n_warmup_of(convention: str, context: Context, seen: Context, *, n_layer: int) -> int:
    """Segments that are read before those that count.

    NVIDIA reads as many of the stream before as hold mem_len tokens, others none; ours, as many as make the result the
    one of a single stream.

    Args:
        context: what was asked for.
        seen: `context_of` it.
    """
    if convention == "txl":
        return warmup_segments(n_layer, seen)
    return -(-context.mem_len // context.tgt_len) if convention == "nvidia" else 0


def predictor_of(
    convention: str, model: TransformerXL, context: Context
) -> "TransformerXL | OriginalMemory | ZeroMemory":
    """The model, with the memory that others give it."""
    if convention == "original" and context.ext_len:
        return OriginalMemory(model)
    if convention == "huggingface":
        return ZeroMemory(model, context.mem_len)
    return model


class OriginalMemory:
    """A model whose memory is cut as kimiyoung/transformer-xl cuts it, with two lengths exchanged where it matters.

    There `_update_mems(hids, mems, qlen, mlen)` is called with (mlen, qlen), and keeps tokens up to
    qlen + max(0, mlen - ext_len) instead of mlen + max(0, qlen - ext_len): a memory shorter than ext_len holds tokens
    that the next segment reads again. As no segment is shorter than what it reads again, this is to leave out as many
    tokens as are remembered, if those are fewer than ext_len.
    """

    def __init__(self, model: TransformerXL) -> None:
        self.model = model

    def fresh_memory(self, batch_size: int) -> AnyMemory:
        """The empty memory."""
        return self.model.fresh_memory(batch_size)

    def nll(self, input_BT: Tensor, target_BT: Tensor, memory: AnyMemory, context: Context) -> tuple[Tensor, AnyMemory]:
        """See `TransformerXL.nll`."""
        context = dataclasses.replace(context, ext_len=min(context.ext_len, memory.length))
        return self.model.nll(input_BT, target_BT, memory, context)


class ZeroMemory:
    """A model whose memory begins as mem_len hidden states of zeros, that are attended to as if they had been read.

    Source: transformers 4.35.2, `TransfoXLModel.init_mems`; kimiyoung/transformer-xl's TensorFlow code does the same.
    """

    def __init__(self, model: TransformerXL, mem_len: int) -> None:
        self.model, self.mem_len = model, mem_len

    def fresh_memory(self, batch_size: int) -> Memory:
        """Zeros, (B, mem_len, D) a layer."""
        weight = self.model.layers[0].attn.k_net.weight
        zeros_BMD = weight.new_zeros(batch_size, self.mem_len, self.model.config.d_model)
        return Memory((zeros_BMD,) * self.model.config.n_layer)

    def nll(self, input_BT: Tensor, target_BT: Tensor, memory: AnyMemory, context: Context) -> tuple[Tensor, AnyMemory]:
        """See `TransformerXL.nll`."""
        return self.model.nll(input_BT, target_BT, memory, context)
