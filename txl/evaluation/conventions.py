"""Evaluation protocols: ours, and those of other implementations, which reproduce their published
figures.

They differ in what a token sees and in the initial memory. How the text is cut is in the text
library: the others drop the remainder and never predict the first token of a stream
(`txl.data_utils.segments.equal_streams`), and deal the sentences of One Billion Word to their
streams (`txl.data_utils.lm1b.SentenceRows`).
"""

import dataclasses

from torch import Tensor

from txl.config import Context, ModelConfig, require
from txl.convert.kimiyoung import ATTN_TYPES
from txl.evaluation.reading import Predictor, Reading, warmup_segments, within
from txl.inference.cuda_graph import frozen
from txl.inference.frozen import AnyMemory, Frozen
from txl.model.memory import State
from txl.model.streams import Memory
from txl.model.transformer import TransformerXL

DEALING = ("original", "huggingface")
"""Conventions that deal sentences to their streams."""


def reading_of(convention: str, model: TransformerXL, context: Context, *, n_token: int) -> Reading:
    """How a convention reads a text of n_token tokens.

    Ours has as many unscored segments before the first scored one as give the result of a single
    stream, NVIDIA's as many as hold mem_len tokens, the others none. NVIDIA's `same_length` shows
    mem_len + 1 keys (DeepLearningExamples, Transformer-XL, mem_transformer.py), including the token
    itself; the original's and ours shows mem_len. Both ignore clamp_len in attn_type 3. Raises
    `UsageError` if the implementation does not support the context.
    """
    match convention:
        case "original":
            seen = _without_idle_clamp(model.config, context)
            unlike = not_reproduced(model.config, context, "the 2019 code's")
            return Reading(
                context,
                within(model.config, seen, n_token),
                0,
                _as_the_original(model, context),
                unlike=unlike,
            )
        case "nvidia":
            if context.same_length:
                seen = dataclasses.replace(context, mem_len=context.mem_len + 1)
            else:
                seen = context
            seen = _without_idle_clamp(model.config, seen)
            n_warmup = -(-context.mem_len // context.tgt_len)
            unlike = not_reproduced(model.config, context, "NVIDIA's")
            return Reading(
                context,
                within(model.config, seen, n_token),
                n_warmup,
                _as_the_original(model, context),
                unlike=unlike,
            )
        case "huggingface":
            none = "Hugging Face's model has none; --convention huggingface needs --ext_len 0"
            require(context.ext_len == 0, f"--ext_len {context.ext_len}: {none}")
            # its memory starts full, so limiting it to the text would give another result
            return Reading(context, context, 0, ZeroMemory(model, context.mem_len))
    seen = within(model.config, context, n_token)
    return Reading(context, seen, warmup_segments(model.config.n_layer, seen), frozen(model))


def _as_the_original(model: TransformerXL, context: Context) -> Predictor:
    """A model with the memory of the original and of NVIDIA's; without ext_len it is ours."""
    if context.ext_len:
        return OriginalMemory(model)
    return frozen(model)


def _without_idle_clamp(config: ModelConfig, context: Context) -> Context:
    ignored = config.own.get("count_back", False) and ATTN_TYPES.index(config.position) == 3
    if ignored:
        return dataclasses.replace(context, clamp_len=-1)
    return context


def not_reproduced(config: ModelConfig, context: Context, whose: str) -> str:
    """Why the figure of another program's code is another one, for weights of that program; empty:
    it is the same.
    """
    if not config.own.get("count_back", False):  # attn_type 0 or 1, or no model of these programs
        return ""
    attn_type = ATTN_TYPES.index(config.position)
    reasons = []
    if context.mem_len:
        reasons.append("adds positions to its memory again at each segment")
    if config.pre_lnorm:
        reasons.append("takes queries from states that are not normalised")
    if reasons:
        return f"not {whose} figure: its attn_type {attn_type} {' and '.join(reasons)}"
    return ""


class OriginalMemory:
    """A model whose memory is updated as in kimiyoung/transformer-xl and in NVIDIA's code, where
    two swapped arguments matter.

    There `_update_mems(hids, mems, qlen, mlen)` is called with (mlen, qlen), and keeps tokens up to
    qlen + max(0, mlen - ext_len) instead of mlen + max(0, qlen - ext_len): a memory shorter than
    ext_len holds tokens that the next segment reads again. Equivalently, the number of tokens left
    out is at most the memory's length.
    """

    def __init__(self, model: TransformerXL) -> None:
        self._model = Frozen(model)
        self.fresh_memory = self._model.fresh_memory

    def nll(
        self, input_BT: Tensor, target_BT: Tensor, memory: AnyMemory, context: Context
    ) -> tuple[Tensor, AnyMemory]:
        """See `TransformerXL.nll`."""
        context = dataclasses.replace(context, ext_len=min(context.ext_len, memory.length))
        return self._model.nll(input_BT, target_BT, memory, context)


class ZeroMemory:
    """A model whose memory starts as mem_len zero vectors, which are attended to like real hidden
    states.

    Source: transformers 4.35.2, `TransfoXLModel.init_mems`; kimiyoung/transformer-xl's TensorFlow
    code does the same.
    """

    def __init__(self, model: TransformerXL, mem_len: int) -> None:
        self.model = model
        self.mem_len = mem_len
        self.nll = model.nll

    def fresh_memory(self, batch_size: int) -> Memory:
        """Zeros, (B, mem_len, D) for each layer."""
        like = self.model.layers[0].attn_norm.weight
        zeros_BMD = like.new_zeros(batch_size, self.mem_len, self.model.config.d_model)
        return Memory((State(zeros_BMD),) * self.model.config.n_layer)
