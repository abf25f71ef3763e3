"""A model whose memory is full, as one CUDA graph: a few tokens at a time are no longer bound by launches."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from txl.config import Context
from txl.memory import KeyValue, KeyValueMemory
from txl.model.transformer import AnyMemory, Output, TransformerXL
from txl.ops.numbers import product_dtype

_LOG = logging.getLogger("txl.model.cuda_graph")


class _Recording:
    """The layers' pass over one shape of segment and a full memory, its operands at fixed addresses.

    Each layer's keys and values lie in a room for M remembered and T new tokens; a replay writes the new ones behind
    the remembered ones, and moves the last M of them to the front.
    """

    def __init__(
        self,
        model: TransformerXL,
        h_BTD: Tensor,
        memory: KeyValueMemory,
        context: Context,
        record: Callable[[Callable[[], None]], Callable[[], None]],
    ) -> None:
        n_new, n_mem = h_BTD.shape[1], memory.length
        self.shape, self.context, self.length, self.turn = h_BTD.shape, context, n_mem, 0
        self._h_BTD, self.hidden_BTD = torch.empty_like(h_BTD), torch.empty_like(h_BTD)
        self._rooms_2BNCH = [self._room(layer, n_new=n_new) for layer in memory.layers]
        self.dtype = self._rooms_2BNCH[0].dtype
        # distances are projected here, not in each replay; the keys and values given stay with who gave them
        self._feats = replace(model.with_feats(memory, context, n_new=n_new), layers=())

        def work() -> None:
            out = model.read(self._h_BTD, self.remembered(), context)
            self.hidden_BTD.copy_(out.hidden_BTD)
            for room_2BNCH in self._rooms_2BNCH:
                room_2BNCH[:, :, :, :n_mem] = room_2BNCH[:, :, :, n_new:].clone()

        self._replay = record(work)
        self.take(memory)

    @staticmethod
    def _room(layer: KeyValue, *, n_new: int) -> Tensor:
        B, N, M, H = layer.k_BNMH.shape
        return layer.k_BNMH.new_empty(2, B, N, M + n_new, H)

    def take(self, memory: KeyValueMemory) -> None:
        """Begin with this memory."""
        for room_2BNCH, layer in zip(self._rooms_2BNCH, memory.layers, strict=True):
            room_2BNCH[0, :, :, : layer.length] = layer.k_BNMH
            room_2BNCH[1, :, :, : layer.length] = layer.v_BNMH

    def remembered(self) -> KeyValueMemory:
        """The memory as it is now, in the recording's own rooms."""
        n_mem = self.length
        return replace(self._feats, layers=tuple(KeyValue(room, 0, n_mem, [n_mem]) for room in self._rooms_2BNCH))

    def run(self, h_BTD: Tensor) -> Tensor:
        """The hidden states of a segment, which the next run overwrites."""
        self._h_BTD.copy_(h_BTD)
        self._replay()
        self.turn += 1
        return self.hidden_BTD


@dataclass(frozen=True, eq=False)
class _RecordedMemory:
    """The memory after so many runs of a recording; it is the recording's until the next run."""

    recording: _Recording
    turn: int

    @property
    def length(self) -> int:
        """Remembered tokens."""
        return self.recording.length


class CudaGraphModel:
    """A model that reads segments of one length over a full memory by replaying a recording; others as ever.

    Gives the model's numbers. Unlike the model's, a memory that it returns serves once: after the next segment it is
    gone. The weights must not change meanwhile.

    Args:
        record: turns work into what repeats it; a CUDA graph unless a test says otherwise.
    """

    def __init__(
        self, model: TransformerXL, *, record: Callable[[Callable[[], None]], Callable[[], None]] | None = None
    ) -> None:
        self.model = model
        self._record = record or _cuda_graph
        self.failed = False
        """Whether a recording was tried and could not be made."""

    def fresh_memory(self, batch_size: int) -> AnyMemory:
        """See `TransformerXL.fresh_memory`."""
        return self.model.fresh_memory(batch_size)

    @torch.no_grad()
    def __call__(self, token_BT: Tensor, memory: AnyMemory | _RecordedMemory, context: Context) -> Output:
        """See `TransformerXL.forward`. The hidden states are overwritten by the next call.

        Raises:
            ValueError: if the memory has been used already.
        """
        h_BTD = self.model.word_emb(token_BT)
        if isinstance(memory, _RecordedMemory):
            if memory.turn != memory.recording.turn:
                raise ValueError("this memory has been used: a graphed model can go on from its last segment only")
            recording = memory.recording
            if (recording.shape, recording.context, recording.dtype) != (h_BTD.shape, context, self._key_dtype()):
                memory = recording.remembered()
        if isinstance(memory, KeyValueMemory):
            if self.failed or not self._can_record(memory, context):
                return self.model.read(h_BTD, memory, context)
            try:
                recording = _Recording(self.model, h_BTD, memory, context, self._record)
            except RuntimeError as error:  # what a layer does may not be allowed in a graph; slower, it works
                self.failed = True
                _LOG.warning("no CUDA graph, reading without: %s", str(error).splitlines()[0])
                return self.model.read(h_BTD, memory, context)
        elif not isinstance(memory, _RecordedMemory):
            return self.model.read(h_BTD, memory, context)
        return Output(recording.run(h_BTD), _RecordedMemory(recording, recording.turn))

    def _can_record(self, memory: KeyValueMemory, context: Context) -> bool:
        """True if the memory is full and stays so, and new keys will be of its type, which is that of the rooms."""
        is_full = 0 < context.mem_len == memory.length and not context.ext_len
        return is_full and memory.layers[0].k_BNMH.dtype == self._key_dtype()

    def _key_dtype(self) -> torch.dtype:
        return product_dtype(self.model.layers[0].attn.k_net.weight)

    def nll(
        self, input_BT: Tensor, target_BT: Tensor, memory: AnyMemory | _RecordedMemory, context: Context
    ) -> tuple[Tensor, AnyMemory | _RecordedMemory]:
        """See `TransformerXL.nll`."""
        hidden_BTD, memory = self(input_BT, memory, context)
        return self.model.softmax.nll(hidden_BTD[:, -target_BT.shape[1] :], target_BT), memory


def _cuda_graph(work: Callable[[], None]) -> Callable[[], None]:
    """Record work as a CUDA graph, after a run on the side that compiles kernels and allocates workspaces."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay
