"""Rows of text that a model reads in step, any number of tokens at a time, as if in whole segments.

Over a memory that is not a queue, the open segment is keys and values of what stands before it, and
behind them those of its tokens so far. Where it ends, the memory reads it once as a whole.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from txl.config import Context, ModelConfig
from txl.inference.cuda_graph import frozen
from txl.inference.frozen import AnyMemory, Frozen, Part, fresh_memory, read, repeated
from txl.inference.kept import Begun
from txl.inference.key_value import KeyValue
from txl.inference.key_values import KeyValueMemory, KeyValues, KeyValuesWithSpans, attended
from txl.inference.turned import TurnedSegments, turns_once
from txl.memory import remembers
from txl.memory.beside import BesideAttention
from txl.memory.compressive import Compressive
from txl.memory.expire_span import ExpireSpan
from txl.memory.recurrent_tokens import RecurrentTokens
from txl.memory.sinks import n_dropped, without_middle
from txl.model.memory import Fifo, State
from txl.model.parts import attends_by_softmax
from txl.model.span import Span
from txl.model.streams import Memory
from txl.model.transformer import Body, TransformerXL


def reading_context(config: ModelConfig, context: Context) -> Context:
    """How a text is read that is generated, or scored by itself.

    Where nothing is remembered, a text would forget everything at the end of each segment. Instead
    the last half of a segment is read again with the next one, so that no more tokens stand
    together than in training.
    """
    if remembers(config, context):
        return replace(context, ext_len=0)
    n_again = context.tgt_len // 2
    return replace(context, tgt_len=context.tgt_len - n_again, ext_len=n_again)


def context_of_text(config: ModelConfig, context: Context, n_token: int) -> Context:
    """`reading_context`, with what is kept of earlier segments limited to a text of n_token tokens;
    results are the same.

    Segments stay as long as they are: tables of positions count from their ends.
    """
    if config.own.get("rope_scaling") == "longrope":  # which asks for the length of the text
        context = context.at_most(n_token, "tgt_len")
    return reading_context(config, context).at_most(n_token)


class Reader:
    """Reads rows of text, token by token or many tokens at once.

    A segment that is read token by token gives the hidden states that it gives when it is read at
    once:
    memory is cut where a segment of `context.tgt_len` tokens ends, and nowhere else. So what is
    generated has the probabilities with which `txl.evaluation.score.score_text` scores it. The
    exception is an encoding that counts positions back from the end of a segment
    (`PositionEncoding.count_back`):
    there a token's state depends on where the text ends.

    All rows read the same number of tokens, so their segments end together.

    Args:
        model: in evaluation mode; its weights must not change.
        context: `ext_len` tokens at the end of a segment are read again with the next one.
        batch_size: rows.
        begun: a text that all rows go on with, read in this context; its `since` are the first
            tokens to read. None: nothing was read before.
    """

    def __init__(
        self,
        model: TransformerXL,
        context: Context,
        batch_size: int,
        begun: Begun | None = None,
    ) -> None:
        before = None
        if begun is not None:
            before = begun.memory
        if turns_once(model, context):
            self._segments: Any = TurnedSegments(model, context, batch_size, before)
            return
        if before is None:
            memory = fresh_memory(model, batch_size)
        else:
            memory = repeated(model, before, batch_size)
        if _slides(model, context, memory):
            self._segments = _Sliding(model, context, memory)
        elif _grows(model):
            self._segments = _Growing(model, context, memory)
        elif opens(model):
            self._segments = _Open(model, context, memory)
        else:
            self._segments = _ReadAgain(model, context, memory)
        if begun is not None:
            self._segments.read_again(torch.tensor([begun.again], dtype=torch.int64))

    @torch.inference_mode()
    def read(self, token_BT: Tensor) -> Tensor:
        """The last layer's hidden states of the next tokens of each row, (B, T, D).

        Args:
            token_BT: ids, on the CPU; at least one a row.
        Raises:
            ValueError: if an id is outside the vocabulary, or there are not as many rows as before.
        """
        parts = []
        while token_BT.shape[1]:
            n_token = min(token_BT.shape[1], self._segments.n_left)
            hidden_BTD = self._segments.read(token_BT[:, :n_token])
            token_BT = token_BT[:, n_token:]
            if token_BT.shape[1]:
                hidden_BTD = hidden_BTD.clone()  # a CUDA graph overwrites its result
            parts.append(hidden_BTD)
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts, dim=1)

    @torch.inference_mode()
    def take_rows(self, index_B: Tensor) -> None:
        """Go on with the rows of these indices, which may repeat, in their order."""
        self._segments.take_rows(index_B)


class _Segments:
    """What a reader holds between two calls: the memory, and of the segment that has begun so many
    tokens.

    Attributes:
        n_left: tokens up to the end of the segment.
    """

    def __init__(self, model: TransformerXL, context: Context, memory: AnyMemory) -> None:
        self._read: Any = Frozen(model)
        self._context = context
        self._memory = memory
        self.n_left = context.tgt_len

    def read(self, token_BT: Tensor) -> Tensor:
        """The hidden states of at most `n_left` tokens more, (B, T, D)."""
        raise NotImplementedError

    def read_again(self, token_1L: Tensor) -> None:
        """Read these tokens of the segment before again, in all rows, before the first new one."""

    def take_rows(self, index_B: Tensor) -> None:
        """See `Reader.take_rows`."""
        self._memory = self._memory.rows(index_B)


class _Sliding(_Segments):
    """With `same_length` every token sees the same number of tokens, wherever a segment ends."""

    def __init__(self, model: TransformerXL, context: Context, memory: AnyMemory) -> None:
        super().__init__(model, context, memory)
        self._read: Any = frozen(model)

    def read(self, token_BT: Tensor) -> Tensor:
        hidden_BTD, self._memory = self._read(token_BT, self._memory, self._context)
        return hidden_BTD

    def take_rows(self, index_B: Tensor) -> None:
        current = getattr(self._memory, "current", None)  # of a CUDA graph
        if current is None:
            memory = self._memory
        else:
            memory = current()
        self._memory = memory.rows(index_B)


class _ReadOn(_Segments):
    """Segments whose end is read again with the next one.

    Attributes:
        again_BL: what is read again before the first token of a segment.
    """

    def __init__(self, model: TransformerXL, context: Context, memory: AnyMemory) -> None:
        super().__init__(model, context, memory)
        self._again_BL = torch.empty(memory.batch_size, 0, dtype=torch.int64)

    def read_again(self, token_1L: Tensor) -> None:
        """See `_Segments.read_again`."""
        self._again_BL = token_1L.repeat(self._memory.batch_size, 1)

    def _last_again(self, token_BL: Tensor) -> Tensor:
        """What of these tokens the next segment reads again."""
        return token_BL[:, max(0, token_BL.shape[1] - self._context.ext_len) :]

    def take_rows(self, index_B: Tensor) -> None:
        super().take_rows(index_B)
        self._again_BL = self._again_BL.index_select(0, index_B.cpu())


class _Growing(_ReadOn):
    """The memory is a queue: it grows by what is read of a segment, and is cut where the segment
    ends.
    """

    def __init__(self, model: TransformerXL, context: Context, memory: AnyMemory) -> None:
        super().__init__(model, context, memory)
        self._n_open = context.ext_len + context.tgt_len
        """Tokens of a whole segment."""
        self._n_full = self._n_open
        """Tokens that stand together at its end, remembered ones included."""

    def read(self, token_BT: Tensor) -> Tensor:
        n_token = token_BT.shape[1]
        input_BL = token_BT
        if self.n_left == self._context.tgt_len:
            input_BL = torch.cat([self._again_BL, token_BT], dim=1)
            self._n_full = self._memory.length + self._n_open
        part = Part(n_kept=self._context.mem_len + self._n_open, n_full=self._n_full)
        hidden_BLD, self._memory = self._read(input_BL, self._memory, self._context, part=part)
        if self._context.ext_len:
            self._again_BL = self._last_again(torch.cat([self._again_BL, token_BT], dim=1))
        self.n_left -= n_token
        if not self.n_left:
            self._end_segment()
        return hidden_BLD[:, -n_token:]

    def _end_segment(self) -> None:
        end = max(0, self._memory.length - self._context.ext_len)
        self._memory = _cut(self._read.model, self._memory, end, self._context.mem_len)
        self.n_left = self._context.tgt_len


class _Open(_ReadOn):
    """The segment that has begun stands as keys and values behind those of the memory, which reads
    it as a whole where it ends.

    Attributes:
        keys: of the memory and of the segment so far; None: no token of it has been read.
    """

    def __init__(self, model: TransformerXL, context: Context, memory: AnyMemory) -> None:
        super().__init__(model, context, memory)
        self._model = model
        self._keys: KeyValueMemory | None = None
        self._prepared: KeyValueMemory | None = None
        """That of the segment before, with features of positions that serve again."""
        self._n_full = 0

    def read(self, token_BT: Tensor) -> Tensor:
        n_token = token_BT.shape[1]
        self.n_left -= n_token
        self._again_BL = torch.cat([self._again_BL, token_BT], dim=1)
        if not self.n_left:
            return self._read_whole()[:, -n_token:]
        input_BL = token_BT
        if self._keys is None:
            input_BL = self._again_BL
            self._keys = self._opened()
            self._n_full = self._keys.length + self._context.ext_len + self._context.tgt_len
        part = Part(n_kept=self._n_full, n_full=self._n_full)
        hidden_BLD, self._keys = self._read(input_BL, self._keys, self._context, part=part)
        return hidden_BLD[:, -n_token:]

    def take_rows(self, index_B: Tensor) -> None:
        super().take_rows(index_B)
        if self._keys is not None:
            self._keys = self._keys.rows(index_B)

    def _opened(self) -> KeyValueMemory:
        keys = opened(self._model, self._memory, self._context)
        if self._prepared is None:
            return keys
        return self._prepared.of(keys.layers)

    def _read_whole(self) -> Tensor:
        hidden_BLD, self._memory = self._read(self._again_BL, self._memory, self._context)
        self._prepared = self._keys
        self._keys = None
        self.n_left = self._context.tgt_len
        self._again_BL = self._last_again(self._again_BL)
        return hidden_BLD


class _ReadAgain(_ReadOn):
    """For any memory: the segment that has begun is read again from its first token for each one
    more.
    """

    def read(self, token_BT: Tensor) -> Tensor:
        n_token = token_BT.shape[1]
        self._again_BL = torch.cat([self._again_BL, token_BT], dim=1)
        hidden_BLD, memory = self._read(self._again_BL, self._memory, self._context)
        self.n_left -= n_token
        if not self.n_left:
            self._memory = memory
            self.n_left = self._context.tgt_len
            self._again_BL = self._last_again(self._again_BL)
        return hidden_BLD[:, -n_token:]


def _slides(model: TransformerXL, context: Context, memory: AnyMemory) -> bool:
    """Each token sees the last mem_len tokens, and only distances count."""
    is_window = context.same_length and context.mem_len > 0 and not context.ext_len
    by_distance = isinstance(memory, KeyValueMemory) and attends_by_softmax(model.config)
    return is_window and by_distance and _grows(model)


def _grows(model: TransformerXL) -> bool:
    """What is remembered of a token does not depend on where a segment ends."""
    is_queue = all(layer.memory.traits.is_queue for layer in model.layers)
    counts_back = model.layers[0].attn.pos.count_back
    return is_queue and model.config.recurrence == "below" and not counts_back


def _cut(model: Body, memory: AnyMemory, end: int, mem_len: int) -> AnyMemory:
    """What the model's memory of mem_len tokens keeps of those before `end`."""
    if isinstance(memory, KeyValueMemory):
        return memory.cut(end, mem_len)
    n_sink = getattr(model.layers[0].memory, "n_sink", 0)
    n_gone = n_dropped(end, n_sink, mem_len)
    kept = []
    for hidden_BMD in memory.layers:
        kept.append(State(without_middle(hidden_BMD[:, :end], n_sink, n_gone)))
    return Memory(tuple(kept))


class KeysBeside(KeyValues):
    """The form of `BesideAttention`, which reads what it held when the segment began."""

    def of_hidden(self, layer: Any, empty: KeyValue, state: State) -> KeyValue:
        """See `KeyValues.of_hidden`."""
        return super().of_hidden(layer, empty, state).with_extra(state.extra)

    def attended(
        self,
        layer: Any,
        h_BTD: Tensor,
        remembered: KeyValue,
        feats: Tensor,
        span: Span,
        context: Context,
    ) -> tuple[Tensor, KeyValue]:
        """See `KeyValues.attended`."""
        then = None
        if isinstance(layer.memory, BesideAttention):
            then = partial(layer.memory.beside, remembered.extra, span)
        out_BTD, seen = attended(layer, h_BTD, remembered, feats, span, then)
        return out_BTD, seen.with_extra(remembered.extra)


class KeysThatExpire(KeyValuesWithSpans):
    """The form of `ExpireSpan`, which drops states where a segment ends only."""

    def attended(
        self,
        layer: Any,
        h_BTD: Tensor,
        remembered: KeyValue,
        feats: Tensor,
        span: Span,
        context: Context,
    ) -> tuple[Tensor, KeyValue]:
        """See `KeyValues.attended`."""
        out_BTD, seen, span_BS = self.weighed(layer, h_BTD, remembered, feats, span)
        age_BM = remembered.extra["age"][:, remembered.length + span.n_new - seen.length :]
        older_BM = torch.where(age_BM > 0, age_BM + span.n_new, 0)
        new_BT = torch.arange(span.n_new, 0, -1, device=age_BM.device).expand(len(age_BM), -1)
        extra = {"age": torch.cat([older_BM, new_BT], dim=1), "span": span_BS}
        return out_BTD, seen.with_extra(extra)


def opens(model: Body) -> bool:
    """True if the memory of a model has such a form."""
    # keys change with what stands before them
    hides_places = model.layers[0].attn.pos.places_hidden_states()
    return not model.is_sharded and not hides_places and _form_of(model) is not None


def opened(model: Body, memory: AnyMemory, context: Context) -> KeyValueMemory:
    """What stands before a segment, to which tokens of it are appended by `read`."""
    form = _form_of(model)
    assert form is not None
    if isinstance(memory, KeyValueMemory):
        return replace(memory, form=form)
    like = model.layers[0].attn_norm.weight
    layers = []
    for layer, state in zip(model.layers, memory.states, strict=True):
        empty = form.empty(model.config, memory.batch_size, like=like)
        layers.append(form.of_hidden(layer, empty, _before(layer, state)))
    keys = KeyValueMemory(tuple(layers), form)
    first = model.layers[0]
    if isinstance(first.memory, RecurrentTokens):
        tokens_BMD = first.memory.begun(first, memory.states[0])
        part = Part(n_kept=tokens_BMD.shape[1], n_full=0)
        _, after = read(model, tokens_BMD, keys, context, part=part)
        assert isinstance(after, KeyValueMemory)
        return after
    return keys


def _before(layer: Any, state: State) -> State:
    """With all that a layer attends to before a segment as hidden states."""
    if isinstance(layer.memory, Compressive):
        return State(torch.cat([state.extra["compressed"], state.hidden_BMD], dim=1))
    return state


def _form_of(model: Body) -> KeyValues | None:
    """By what the layers' memories do with a segment; None: something else."""
    rules = {type(layer.memory).forward for layer in model.layers}
    if rules == {ExpireSpan.forward}:
        return KeysThatExpire()
    if rules in ({Fifo.forward}, {Compressive.forward}):
        return KeyValues()
    if rules <= {RecurrentTokens.forward, Fifo.forward}:
        return KeyValues()
    if rules <= {BesideAttention.forward, Fifo.forward}:
        return KeysBeside()
    return None
