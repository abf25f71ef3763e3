"""Replaying the forward pass over a full memory as a CUDA graph, which removes launch overhead."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from txl.config import Context
from txl.inference.frozen import AnyMemory, Frozen, Part, read
from txl.inference.key_value import KeyValue
from txl.inference.key_values import KeyValueMemory
from txl.model.streams import Memory
from txl.model.transformer import TransformerXL
from txl.ops.numbers import product_dtype
from txl.runtime.recording import Record, on_device, recorded

_LOG = logging.getLogger(__name__)
# recordings, each with buffers for a whole memory: full segments and a text's shorter last one
_N_KEPT = 2


class _Recording:
    """The forward pass over one segment shape and a full memory, with operands at fixed addresses.

    Each layer has a buffer for the keys and values of M remembered and T new tokens. A replay
    appends the new ones to the remembered ones, and those that are kept to the last M places; then
    it moves these to the front.
    """

    def __init__(
        self,
        model: TransformerXL,
        h_BTD: Tensor,
        memory: KeyValueMemory,
        context: Context,
        record: Record,
    ) -> None:
        n_new = h_BTD.shape[1]
        n_mem = memory.length
        self.length = n_mem
        self.turn = 0
        self._h_BTD, self.hidden_BTD = torch.empty_like(h_BTD), torch.empty_like(h_BTD)
        self._buffers_2BNCH = [self._buffer(layer, n_new=n_new) for layer in memory.layers]
        # position features are projected here, not in each replay
        self._feats = memory.with_feats(model.layers, context, n_new=n_new).of(())

        def work() -> None:
            before = self._feats.of(self._keys(room=n_mem + n_new))
            hidden_BTD, _ = read(model, self._h_BTD, before, context)
            self.hidden_BTD.copy_(hidden_BTD)
            for buffer_2BNCH in self._buffers_2BNCH:
                buffer_2BNCH[:, :, :, :n_mem] = buffer_2BNCH[:, :, :, n_new:].clone()

        self._replay = record(work)

    @staticmethod
    def _buffer(layer: KeyValue, *, n_new: int) -> Tensor:
        B, N, M, H = layer.k_BNMH.shape
        return layer.k_BNMH.new_empty(2, B, N, M + n_new, H)

    def load(self, memory: KeyValueMemory) -> None:
        """Copy a memory into the buffers; memories of earlier runs become invalid."""
        self.turn += 1
        for buffer_2BNCH, layer in zip(self._buffers_2BNCH, memory.layers, strict=True):
            # may be views of buffers
            buffer_2BNCH[:, :, :, : layer.length] = torch.stack([layer.k_BNMH, layer.v_BNMH])

    def memory(self) -> KeyValueMemory:
        """The current memory, a view of the buffers."""
        return self._feats.of(self._keys())

    def _keys(self, room: int = 0) -> list[KeyValue]:
        n_mem = self.length
        return [KeyValue(b, 0, n_mem, [n_mem], room=room) for b in self._buffers_2BNCH]

    def run(self, h_BTD: Tensor) -> Tensor:
        """The hidden states of a segment; the next run overwrites them."""
        self._h_BTD.copy_(h_BTD)
        self._replay()
        self.turn += 1
        return self.hidden_BTD


@dataclass(frozen=True, eq=False)
class _RecordedMemory:
    """The memory after a run of a recording, valid until the next run."""

    recording: _Recording
    turn: int

    @property
    def length(self) -> int:
        """Remembered tokens."""
        return self.recording.length

    def current(self) -> KeyValueMemory:
        """The memory as keys and values.

        Raises:
            ValueError: if a later run has overwritten it.
        """
        if self.turn != self.recording.turn:
            raise ValueError(
                "this memory has been used: a CUDA graph can continue from its last segment only"
            )
        return self.recording.memory()


class CudaGraphModel(Frozen):
    """A model that replays a recording for segments over a full memory, and runs normally
    otherwise.

    Results equal the model's. Recordings are reused from text to text, so make one `CudaGraphModel`
    per evaluation and read one text at a time: a returned memory is valid until the next segment
    only. The weights must not change, and an autocast context must be entered once around all
    calls: recordings refer to the cast weights that it caches.

    Args:
        before: see `Frozen`.
        record: turns work into a function that repeats it; by default a CUDA graph.
    """

    def __init__(
        self,
        model: TransformerXL,
        before: Memory | None = None,
        *,
        record: Record | None = None,
    ) -> None:
        super().__init__(model, before)
        self._record = record or _cuda_graph
        # least recently used first
        self._recordings: dict[tuple[torch.Size, torch.dtype, Context], _Recording] = {}
        self.failed = False
        """True once a recording has failed."""

    @torch.no_grad()
    def __call__(
        self,
        token_BT: Tensor,
        memory: AnyMemory | _RecordedMemory,
        context: Context,
        since_BT: Tensor | None = None,
        *,
        part: Part | None = None,
    ) -> tuple[Tensor, AnyMemory | _RecordedMemory]:
        """See `Frozen`. The next call overwrites the hidden states.

        Raises:
            ValueError: if the memory has been used already.
        """
        h_BTD = self.model.word_emb(token_BT)
        if isinstance(memory, _RecordedMemory):
            before = memory.current()
        else:
            before = memory
        is_plain = since_BT is None and part is None
        if not (
            is_plain and isinstance(before, KeyValueMemory) and self._can_record(before, context)
        ):
            return read(self.model, h_BTD, before, context, since_BT, part=part)
        recording = self._recording(h_BTD, before, context)
        if recording is None:
            return read(self.model, h_BTD, before, context)
        if not (isinstance(memory, _RecordedMemory) and memory.recording is recording):
            recording.load(before)
        return recording.run(h_BTD), _RecordedMemory(recording, recording.turn)

    def _recording(
        self, h_BTD: Tensor, memory: KeyValueMemory, context: Context
    ) -> _Recording | None:
        """The recording for this segment shape, made if there is none; None if
        it cannot be made.
        """
        key = h_BTD.shape, self._key_dtype(), context
        recording = self._recordings.pop(key, None)
        if recording is None and not self.failed:
            try:
                with on_device(self.model.device):
                    recording = _Recording(self.model, h_BTD, memory, context, self._record)
            except RuntimeError as error:  # a layer may use operations that a graph cannot contain
                self.failed = True
                _LOG.warning("no CUDA graph, running without: %s", str(error).splitlines()[0])
        if recording is not None:
            self._recordings[key] = recording
            if len(self._recordings) > _N_KEPT:
                del self._recordings[next(iter(self._recordings))]
        return recording

    def _can_record(self, memory: KeyValueMemory, context: Context) -> bool:
        """True if the memory is full, stays full, and has the dtype of the new keys."""
        # what stays depends on what is read
        if not self.model.layers[0].memory.traits.keeps_places:
            return False
        is_full = 0 < memory.form.n_sink + context.mem_len == memory.length
        stays_full = is_full and not context.ext_len
        return stays_full and memory.layers[0].k_BNMH.dtype == self._key_dtype()

    def _key_dtype(self) -> torch.dtype:
        return product_dtype(self.model.layers[0].attn_norm.weight)


def frozen(model: TransformerXL, before: Memory | None = None) -> Frozen:
    """The model for reading without gradients, on a GPU as a `CudaGraphModel` unless it is sharded;
    `before` as in `Frozen`.
    """
    if model.device.type == "cuda" and not model.is_sharded:
        return CudaGraphModel(model, before)
    return Frozen(model, before)


def _cuda_graph(work: Callable[[], None]) -> Callable[[], None]:
    """Record work as a CUDA graph, after a warm-up run on a side stream: it compiles kernels,
    allocates workspaces.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    return recorded(work)
