"""`TransfoXLModel` of transformers 4, computed by our model.

As there, a model without `mems` attends to `mem_len` zero vectors; `mems` are (mem_len, batch, d_model), one per layer.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel, initialization  # pyright: ignore[reportMissingImports]
from transformers.utils import ModelOutput  # pyright: ignore[reportMissingImports]

from txl.convert.huggingface import configs_of, shared_biases
from txl.convert.kimiyoung_names import inv_freq
from txl.evaluation.measures.attention_by_distance import probabilities
from txl.hf.config import TransfoXLConfig
from txl.hf.weights import Weights, add_weights, call_with, recomputed
from txl.model.memory import Memory, Reading, State
from txl.model.sizes import model_without_values
from txl.model.transformer import TransformerXL


@dataclass
class TransfoXLModelOutput(ModelOutput):
    """Attributes:
    last_hidden_state: (B, T, D).
    mems: for the next segment, one (mem_len, B, D) per layer.
    hidden_states: if asked for, the embeddings and each layer's output, (B, T, D).
    attentions: if asked for, the probabilities of each layer, (B, n_head, T, memory + T).
    """

    last_hidden_state: Tensor | None = None
    mems: list[Tensor] | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class TransfoXLPreTrainedModel(PreTrainedModel):
    """What all TransfoXL models share: the configuration, fresh weights."""

    config_class = TransfoXLConfig
    base_model_prefix = "transformer"
    supports_gradient_checkpointing = True
    _keys_to_ignore_on_load_missing = (r"pos_emb\.inv_freq",)

    def _init_weights(self, module: nn.Module) -> None:
        if not isinstance(module, Weights):
            super()._init_weights(module)
            return
        config = self.config
        for name, tensor in module.named_parameters(recurse=False):
            if name == "weight" and tensor.dim() == 1:  # LayerNorm
                initialization.normal_(tensor, 1.0, config.init_std)
            elif name in ("bias", "cluster_bias"):
                initialization.zeros_(tensor)
            elif name.isdecimal():  # of a list of projections
                initialization.normal_(tensor, 0.0, config.proj_init_std)
            elif config.init == "uniform":
                initialization.uniform_(tensor, -config.init_range, config.init_range)
            else:
                initialization.normal_(tensor, 0.0, config.init_std)
        for name, buffer in module.named_buffers(recurse=False):
            if name == "inv_freq":
                initialization.copy_(buffer, inv_freq(config.d_model).to(buffer))

    def _asked(self, value: bool | None, name: str) -> bool:
        """An argument of a call, by default that of the configuration."""
        return bool(getattr(self.config, name, False) if value is None else value)

    def _ties(self) -> dict[str, str]:
        """Second names of tensors, each with the first."""
        return {}

    @property
    def _tied_weights_keys(self) -> dict[str, str]:
        return self._ties()

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Tied tensors, which do not only follow `tie_word_embeddings`."""
        own = self._ties()
        base = getattr(self, self.base_model_prefix, None)
        if all_submodels and isinstance(base, TransfoXLPreTrainedModel):
            own |= {f"transformer.{name}": f"transformer.{first}" for name, first in base._ties().items()}
        return own

    def resize_token_embeddings(self, *_: Any, **__: Any) -> nn.Module:
        """Refused: the clusters of the softmax are ranges of ids."""
        raise NotImplementedError("resize_token_embeddings: the vocabulary of a TransfoXL model is fixed")


class TransfoXLModel(TransfoXLPreTrainedModel):
    """The layers, without a head."""

    def __init__(self, config: TransfoXLConfig) -> None:
        super().__init__(config)
        model_config, self.context = configs_of(config.to_dict())
        self.mem_len = config.mem_len
        model = model_without_values(model_config, dropout=config.dropout, dropatt=config.dropatt)
        self.__dict__["ours"] = model  # no submodule: its weights are those here
        add_weights(self, model, "transformer.")
        self.gradient_checkpointing = False
        self.post_init()

    def _ties(self) -> dict[str, str]:
        return shared_biases(self.ours.config)

    def get_input_embeddings(self) -> nn.Module:
        """The tables of the adaptive embedding."""
        return self.word_emb

    def reset_memory_length(self, mem_len: int) -> None:
        """Look back that many tokens from now on."""
        self.mem_len = mem_len

    def init_mems(self, bsz: int) -> list[Tensor] | None:
        """The memory before the first segment: zeros, which are attended to."""
        if not self.mem_len:
            return None
        like = self.layers.get_submodule("0.dec_attn.o_net").weight
        return [like.new_zeros(self.mem_len, bsz, self.config.d_model) for _ in range(self.config.n_layer)]

    def forward(
        self,
        input_ids: Tensor | None = None,
        mems: Sequence[Tensor] | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        attention_mask: Tensor | None = None,
    ) -> TransfoXLModelOutput | tuple[Any, ...]:
        """Read a segment.

        Args:
            input_ids: (B, T), or `inputs_embeds` (B, T, D), scaled as the model's own.
            mems: of the segment before.
            attention_mask: (B, T), or longer, of which the last T columns count: 0 for padding. A row with padding
                before its tokens is read as it would be alone: padding takes the place of the zeros of an empty memory.
        Raises:
            ValueError: if neither or both of the inputs are given, or padding stands between `mems` and the tokens, or
                `mems` are not one of each layer.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        given = input_ids if input_ids is not None else inputs_embeds
        assert given is not None
        padding = _Padding.of(attention_mask, given)
        if padding is not None and mems is not None and padding.is_before_tokens:
            raise ValueError("padding between mems and tokens: pad the first segment only, which has no mems")
        if mems is not None and len(mems) != self.config.n_layer:
            raise ValueError(f"{len(mems)} mems: must be {self.config.n_layer}, one of each layer")
        mems = self.init_mems(len(given)) if mems is None else mems
        context = dataclasses.replace(self.context, mem_len=self.mem_len)
        hids: list[Tensor] = []
        attentions: list[Tensor] = []

        def run(model: TransformerXL) -> tuple[Tensor, Any]:
            h_BTD = model.word_emb(input_ids) if inputs_embeds is None else inputs_embeds
            memory = None if mems is None else Memory(tuple(State(mem_MBD.transpose(0, 1)) for mem_MBD in mems))
            since_BT = None if padding is None else padding.since_BT(0 if mems is None else len(mems[0]))
            model.run = functools.partial(_run_layers, padding, self.gradient_checkpointing and self.training)
            with _recorded(model, hids, attentions if self._asked(output_attentions, "output_attentions") else None):
                return model.train(self.training).read(h_BTD, memory, context, since_BT)

        weights = dict(self.named_parameters(remove_duplicate=False))
        hidden_BTD, memory = call_with(weights, self.ours, ("word_emb.", "layers."), run)
        remembered = memory.layers if padding is None else [padding.zeroed(mem_BMD) for mem_BMD in memory.layers]
        output = TransfoXLModelOutput(
            last_hidden_state=hidden_BTD,
            mems=None if mems is None else [mem_BMD.transpose(0, 1) for mem_BMD in remembered],
            hidden_states=(*hids, hidden_BTD) if self._asked(output_hidden_states, "output_hidden_states") else None,
            attentions=tuple(attentions) if attentions else None,
        )
        return output if self._asked(return_dict, "return_dict") else output.to_tuple()


@dataclass(frozen=True)
class _Padding:
    """Which tokens of a segment are padding. Their states are zeros in every layer, as in an empty memory."""

    is_token_BT: Tensor

    @classmethod
    def of(cls, attention_mask: Tensor | None, given: Tensor) -> "_Padding | None":
        if attention_mask is None:
            return None
        is_token_BT = attention_mask[:, -given.shape[1] :] != 0
        return None if bool(is_token_BT.all()) else cls(is_token_BT)

    @property
    def _first_B(self) -> Tensor:
        return self.is_token_BT.int().argmax(1)

    @property
    def is_before_tokens(self) -> bool:
        return bool((self._first_B > 0).any())

    def since_BT(self, mem_len: int) -> Tensor:
        """See `Span`: each row sees as many zeros before its tokens as a row without padding, those of the memory."""
        place_T = torch.arange(self.is_token_BT.shape[1], device=self.is_token_BT.device)
        return (mem_len + place_T - self._first_B[:, None]).clamp(min=0)

    def zeroed(self, x_BLD: Tensor) -> Tensor:
        """States of tokens that end with those of the segment, or of its last, with zeros for padding."""
        n_new = min(x_BLD.shape[1], self.is_token_BT.shape[1])
        is_token_BL1 = F.pad(self.is_token_BT[:, -n_new:], (x_BLD.shape[1] - n_new, 0), value=True)[..., None]
        return x_BLD.where(is_token_BL1, 0.0)


def _run_layers(
    padding: _Padding | None,
    recompute: bool,
    layers: Any,
    h_BTD: Tensor,
    states: tuple[State, ...],
    reading: Reading,
) -> tuple[Tensor, tuple[State, ...]]:
    """In place of `txl.model.layer.run_layers`."""
    reading = reading.prepared()
    next_states = []
    for layer, state in zip(layers, states, strict=True):
        if padding is not None:
            h_BTD = padding.zeroed(h_BTD)
        call = recomputed if recompute and torch.is_grad_enabled() else _called
        h_BTD, next_state = call(layer, h_BTD, state, reading)
        next_states.append(next_state)
    return h_BTD, tuple(next_states)


def _called(layer: nn.Module, *inputs: Any) -> Any:
    return layer(*inputs)


@contextlib.contextmanager
def _recorded(model: TransformerXL, hids: list[Tensor], attentions: list[Tensor] | None) -> Iterator[None]:
    """Collect the input of each layer and, if asked for, its attention probabilities (B, N, T, S)."""

    def watch(attention: Any, args: Any) -> None:
        assert attentions is not None
        attentions.append(probabilities(attention, *args[:4]))

    handles = [layer.register_forward_pre_hook(lambda _, args: hids.append(args[0])) for layer in model.layers]
    if attentions is not None:
        for layer in model.layers:
            handles.append(layer.attn.register_forward_pre_hook(watch))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
