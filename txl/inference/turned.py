"""Reading with rotary positions: keys are kept as they are turned by their place in the text, so that
none is turned again for a token more.

Only distances count, so it does not matter where places begin. The first tokens of a text, which a
memory may keep (`--memory sinks`), are turned once more where a segment ends, to the places right
before the tokens that are kept.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from txl.attention_rules.softmax import GroupedSoftmaxAttention, SoftmaxAttention
from txl.config import Context
from txl.inference import turned_token
from txl.inference.one_token import is_hooked
from txl.inference.turned_token import TokenLayer, Turn, over_all
from txl.memory.none import NoMemory
from txl.memory.sinks import Sinks, n_dropped
from txl.model.memory import Fifo
from txl.model.streams import Memory
from txl.model.transformer import TransformerXL
from txl.ops.heads import folded, folded_mask
from txl.ops.numbers import as_multiplied, at_least_float32, product_dtype
from txl.positions.base import PlacedAttention
from txl.positions.rotary import Rotary, turned

_ROOM = 64
"""Tokens more than are needed for which a buffer has room at least."""


def turns_once(model: TransformerXL, context: Context) -> bool:
    """True if a model is read here: rotary positions, softmax attention, a queue of tokens."""
    config = model.config
    is_other = config.reversible or config.recurrence != "below" or model.is_sharded
    if is_other or context.ext_len or model.training:
        return False
    if context.same_length and model.device.type == "cuda":  # which is recorded as a graph
        return False
    return all(map(_is_served, model.layers))


def _is_served(layer: Any) -> bool:
    """`TurnedSegments` computes what this kind of layer does, and nobody listens to what it leaves
    out.
    """
    attn = layer.attn
    is_known = type(attn) is PlacedAttention and type(attn.pos) is Rotary
    is_softmax = type(attn.rule) in (SoftmaxAttention, GroupedSoftmaxAttention)
    is_queue = type(layer.memory) in (Fifo, NoMemory, Sinks)
    has_hook = is_hooked((attn, attn.rule))
    return is_known and is_softmax and is_queue and not has_hook


class TurnedSegments:
    """What a reader of a text holds: keys and values of all layers in one buffer,

        forgotten | sinks | memory | segment so far | free
                  ^ begin                           ^ end

    Attributes:
        n_left: tokens up to the end of the segment.
    """

    def __init__(
        self,
        model: TransformerXL,
        context: Context,
        batch_size: int,
        before: Memory | None = None,
    ) -> None:
        model.require_serves(context, has_documents=False)
        config = model.config
        self._model = model
        self._context = context
        self._pos: Any = model.layers[0].attn.pos
        shape = (2, config.n_layer, batch_size, config.n_key_head, 0, config.d_head)
        self._kv_2LBKCH = torch.empty(shape, device=model.device)
        self._window = 0  # tokens that one sees, itself included; 0: all
        if context.same_length:
            self._window = context.mem_len
        self._begin = 0
        self._end = 0
        self._place = 0  # of the token at `end`
        self._n_sink = getattr(model.layers[0].memory, "n_sink", 0)
        self._sinks: _Sinks | None = None
        self._token_layers: list[TokenLayer] = []
        self._made_for: tuple[torch.dtype, int] | None = None  # dtype of products, and rows
        self.n_left = context.tgt_len
        if before is not None:
            self._remember(before.to(model.device), batch_size)

    def read(self, token_BT: Tensor) -> Tensor:
        """The hidden states of at most `n_left` tokens more, (B, T, D)."""
        model = self._model
        n_new = token_BT.shape[1]
        h_BTD = model.drop(model.word_emb(token_BT))
        if self._reads_one(h_BTD):
            h_BTD = self._through_token_layers(h_BTD)
        else:
            h_BTD = self._through_layers(h_BTD)
        self._end += n_new
        self._place += n_new
        self.n_left -= n_new
        if not self.n_left:
            self._end_segment()
        return model.drop(model.final_norm(h_BTD))

    def take_rows(self, index_B: Tensor) -> None:
        """See `Reader.take_rows`."""
        index_B = index_B.to(self._kv_2LBKCH.device)
        self._kv_2LBKCH = self._kv_2LBKCH.index_select(2, index_B)
        if self._sinks is not None:
            kv_2LBKAH = self._sinks.kv_2LBKAH.index_select(2, index_B)
            self._sinks = self._sinks._replace(kv_2LBKAH=kv_2LBKAH)

    @torch.no_grad()
    def _remember(self, memory: Memory, batch_size: int) -> None:
        """Begin with what a memory of one row holds, as if it stood at the first places."""
        n_kept = memory.length
        feats = self._turns(n_kept, memory.states[0].hidden_BMD)
        for i, (layer, state) in enumerate(zip(self._model.layers, memory.states, strict=True)):
            k_1KMH, v_1KMH = layer.keys_and_values(state.hidden_BMD)
            self._appended(
                i,
                turned(k_1KMH, feats).expand(batch_size, -1, -1, -1),
                v_1KMH.expand(batch_size, -1, -1, -1),
            )
        self._end += n_kept
        self._place += n_kept

    def _through_layers(self, h_BTD: Tensor) -> Tensor:
        n_new = h_BTD.shape[1]
        feats = self._turns(n_new, h_BTD)
        mask = self._mask(n_new, as_multiplied(h_BTD))
        for i, layer in enumerate(self._model.layers):
            h_BTD = layer.finish(h_BTD, self._attended(i, layer, h_BTD, feats, mask))
        return h_BTD

    def _reads_one(self, h_BTD: Tensor) -> bool:
        """True if the next token is read by layers that are made for one."""
        n_row, n_new = h_BTD.shape[:2]
        dtype = product_dtype(h_BTD)
        if n_new != 1:
            return False
        if self._made_for != (dtype, n_row) and turned_token.serves(self._model.layers, h_BTD):
            self._made_for = dtype, n_row
            self._token_layers = [TokenLayer(layer, dtype, n_row) for layer in self._model.layers]
        return self._made_for == (dtype, n_row)

    def _through_token_layers(self, h_B1D: Tensor) -> Tensor:
        h_BD = h_B1D[:, 0]
        turn = Turn.of(self._turns(1, h_B1D))
        self._forget_outside_window()
        self._make_room(1, as_multiplied(h_BD))
        seen_2LBKSH = self._kv_2LBKCH[..., self._begin : self._end + 1, :]
        with torch.autocast("cpu", enabled=False):
            for layer, k_BKSH, v_BKSH in zip(self._token_layers, *seen_2LBKSH, strict=True):
                h_BD = layer(h_BD, turn, k_BKSH, v_BKSH)
        return h_BD[:, None]

    def _turns(self, n_new: int, like: Tensor) -> Tensor:
        """Those of the new tokens, see `Rotary.turns`."""
        place_T = torch.arange(self._place, self._place + n_new, device=like.device)
        return self._pos.turns(place_T, at_least_float32(like.dtype), self._context.reach)

    def _mask(self, n_new: int, like: Tensor) -> Tensor | None:
        """Which keys the new tokens see, (G T, S), as a term of logits, which PyTorch would make of
        a mask for each layer anew; None: all that there are, which for a single token are
        those in its window.
        """
        if n_new == 1:
            self._forget_outside_window()
            return None
        n_past = self._end - self._begin
        seen = torch.ones(n_new, n_past + n_new, dtype=torch.bool, device=like.device).tril(n_past)
        if self._window:
            seen = seen.triu(n_past + 1 - self._window)
        mask = like.new_zeros(seen.shape).masked_fill(seen.logical_not(), -torch.inf)
        config = self._model.config
        return folded_mask(mask, config.n_head // config.n_key_head)

    def _forget_outside_window(self) -> None:
        """What the next token does not see any more."""
        if self._window:
            self._begin = max(self._begin, self._end + 1 - self._window)

    def _attended(
        self, i: int, layer: Any, h_BTD: Tensor, feats: Tensor, mask: Tensor | None
    ) -> Tensor:
        """The output of a layer's attention, (B, T, D)."""
        attn = layer.attn
        x_BTD = as_multiplied(layer.normed(h_BTD))
        q_BNTH = turned(attn.heads(attn.q_net(x_BTD)), feats)
        k_BKTH, v_BKTH = attn.keys_and_values(x_BTD)
        k_BKSH, v_BKSH = self._appended(i, turned(k_BKTH, feats), v_BKTH)
        q_BKLH = folded(q_BNTH, k_BKTH.shape[1])
        if mask is None and q_BKLH.device.type == "cpu":
            out_BKLH = over_all(q_BKLH, k_BKSH, v_BKSH, attn.pos.scale)
        else:
            out_BKLH = F.scaled_dot_product_attention(
                q_BKLH, k_BKSH, v_BKSH, mask, scale=attn.pos.scale
            )
        return attn.joined(out_BKLH.reshape(q_BNTH.shape))

    def _appended(self, i: int, k_BKTH: Tensor, v_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values of layer i that the new tokens see, (B, K, S, H)."""
        n_new = k_BKTH.shape[2]
        if i == 0:
            self._make_room(n_new, k_BKTH)
        kv_2BKCH = self._kv_2LBKCH[:, i]
        end = self._end + n_new
        kv_2BKCH[0, :, :, self._end : end] = k_BKTH
        kv_2BKCH[1, :, :, self._end : end] = v_BKTH
        k_BKSH, v_BKSH = kv_2BKCH[:, :, :, self._begin : end]
        return k_BKSH, v_BKSH

    def _make_room(self, n_new: int, like: Tensor) -> None:
        """Move what is kept to the beginning of a buffer with free space behind it."""
        capacity = self._kv_2LBKCH.shape[4]
        is_alike = self._kv_2LBKCH.dtype == like.dtype
        if is_alike and self._end + n_new <= capacity:
            return
        kept_2LBKMH = self._kv_2LBKCH[..., self._begin : self._end, :]
        n_kept = kept_2LBKMH.shape[4]
        needed = n_kept + n_new
        room_2LBKCH = self._kv_2LBKCH
        if not is_alike or needed + needed // 8 > capacity:  # else it would be full again soon
            shape = (*kept_2LBKMH.shape[:4], needed + needed // 4 + _ROOM, kept_2LBKMH.shape[5])
            room_2LBKCH = like.new_empty(shape)
        for i in range(kept_2LBKMH.shape[1]):  # a copy of one layer, which may lie over its place
            room_2LBKCH[:, i, :, :, :n_kept] = kept_2LBKMH[:, i].clone()
        self._kv_2LBKCH = room_2LBKCH
        self._begin = 0
        self._end = n_kept

    def _end_segment(self) -> None:
        self.n_left = self._context.tgt_len
        n_gone = n_dropped(self._end - self._begin, self._n_sink, self._context.mem_len)
        if not n_gone:
            return
        if self._sinks is None:
            place = self._place - (self._end - self._begin)
            first = self._kv_2LBKCH[..., self._begin : self._begin + self._n_sink, :]
            self._sinks = _Sinks(first.clone(), place)
        self._begin += n_gone
        if self._n_sink:
            self._move_sinks(self._sinks)

    def _move_sinks(self, sinks: "_Sinks") -> None:
        """Write the sinks over forgotten tokens, as if they stood right before the memory."""
        place = self._place - (self._end - self._begin)
        further = torch.tensor([place - sinks.place], device=self._kv_2LBKCH.device)
        dtype = at_least_float32(sinks.kv_2LBKAH.dtype)
        feats = self._pos.turns_again(further, dtype, self._context.reach)
        here_2LBKAH = self._kv_2LBKCH[..., self._begin : self._begin + self._n_sink, :]
        here_2LBKAH[0] = turned(sinks.kv_2LBKAH[0], feats)
        here_2LBKAH[1] = sinks.kv_2LBKAH[1]


class _Sinks(NamedTuple):
    """The first keys and values of a text, turned by their places from `place` on."""

    kv_2LBKAH: Tensor
    place: int
