"""`TransfoXLModel` of transformers 4, computed by our model.

As there, a model without `mems` attends to `mem_len` zero vectors; `mems` are (mem_len, batch,
d_model), one per layer. Rows of a batch may be padded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, initialization  # pyright: ignore[reportMissingImports]
from transformers.utils import ModelOutput  # pyright: ignore[reportMissingImports]

from txl.convert.huggingface import configs_of, require_memory, shared_biases
from txl.convert.kimiyoung import inv_freq
from txl.hf.adaptive import AdaptiveEmbedding, AdaptiveSoftmax, DistanceEncoding
from txl.hf.config import TransfoXLConfig
from txl.hf.layers import TransfoXLLayer, new_biases
from txl.memory import Span
from txl.ops.dropout import Dropout
from txl.ops.operator import is_traced


def tokens_of(attention_mask: Tensor, n_new: int) -> Tensor:
    """True for the tokens of a segment, False for padding, (B, T): the last columns of a mask."""
    return attention_mask[:, -n_new:] != 0


def padding_of(attention_mask: Tensor | None, *, n_new: int, has_mems: bool) -> Tensor | None:
    """`tokens_of` a segment; None if it has no padding. Raises `ValueError` for padding between
    memory and tokens.
    """
    if attention_mask is None:
        return None
    is_token_BT = tokens_of(attention_mask, n_new)
    if is_traced():
        return is_token_BT
    if bool(is_token_BT.all()):
        return None
    if has_mems and bool(_first_tokens(is_token_BT).any()):
        raise ValueError(
            "padding between mems and tokens: pad the first segment only, which has no mems"
        )
    return is_token_BT


def since(is_token_BT: Tensor | None, n_mem: int) -> Tensor | None:
    """See `Span`: each row sees as many zeros before its tokens as a row without padding, those of
    the memory.
    """
    if is_token_BT is None:
        return None
    place_T = torch.arange(is_token_BT.shape[1], device=is_token_BT.device)
    return (n_mem + place_T - _first_tokens(is_token_BT)[:, None]).clamp(min=0)


def _first_tokens(is_token_BT: Tensor) -> Tensor:
    """The place of each row's first token, (B,); 0 if there is none."""
    return is_token_BT.int().argmax(1)


def require_ascending(position_ids: Tensor | None, attention_mask: Tensor | None) -> None:
    """Raise `ValueError` if positions (B, T) or (1, T) do not count up by one from each token to
    the next: attention knows distances in the row alone.
    """
    if position_ids is None or is_traced():
        return
    is_step_BT = position_ids.diff(dim=1) == 1
    if attention_mask is not None:
        is_token_BT = tokens_of(attention_mask, position_ids.shape[1])
        is_step_BT = is_step_BT | ~(is_token_BT[:, 1:] & is_token_BT[:, :-1])
    if not bool(is_step_BT.all()):
        raise ValueError(
            "position_ids must count up by one in each row; give texts in rows of their own"
        )


@dataclass
class TransfoXLModelOutput(ModelOutput):
    """Attributes:
    last_hidden_state: (B, T, D).
    mems: for the next segment, one (mem_len, B, D) per layer; None with `use_cache=False`.
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

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        config = self.config
        for name, parameter in module.named_parameters(recurse=False):
            if name in ("bias", "cluster_bias"):
                initialization.zeros_(parameter)
            elif isinstance(module, nn.ParameterList):  # of projections
                initialization.normal_(parameter, 0.0, config.proj_init_std)
            elif isinstance(module, nn.LayerNorm):
                initialization.normal_(parameter, 1.0, config.init_std)
            elif config.init == "uniform":
                initialization.uniform_(parameter, -config.init_range, config.init_range)
            else:
                initialization.normal_(parameter, 0.0, config.init_std)
        if isinstance(module, DistanceEncoding):
            initialization.copy_(module.inv_freq, inv_freq(config.d_model))

    def _asked(self, value: bool | None, name: str) -> bool:
        """An argument of a call, by default that of the configuration."""
        return bool(getattr(self.config, name, False) if value is None else value)

    def _returned(self, output: ModelOutput, return_dict: bool | None) -> Any:
        """The output, or a tuple of what it holds."""
        if self._asked(return_dict, "return_dict"):
            return output
        return output.to_tuple()

    @property
    def _tied_weights_keys(self) -> dict[str, str]:
        """Second names of tensors, each with the first, as the configuration says now."""
        return {}

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Tied tensors, which do not only follow `tie_word_embeddings`."""
        ties = self._tied_weights_keys
        base = self.base_model
        if all_submodels and base is not self:
            for name, first in base._tied_weights_keys.items():
                ties[f"transformer.{name}"] = f"transformer.{first}"
        return ties

    def get_input_embeddings(self) -> nn.Module:
        """The adaptive embedding: ids to hidden states, scaled as `inputs_embeds` are."""
        return self.base_model.word_emb

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Put another module, of ids (B, T) to hidden states (B, T, D), in place of the adaptive
        embedding.
        """
        self.base_model.word_emb = value

    def resize_token_embeddings(
        self,
        new_num_tokens: int | None = None,
        pad_to_multiple_of: int | None = None,
        mean_resizing: bool = True,
    ) -> nn.Module:
        """Add words at the end of the vocabulary, or take the last ones away, in the last cluster;
        its embedding.

        Args:
            new_num_tokens: of the whole vocabulary; None: as before.
            pad_to_multiple_of: the vocabulary's size becomes the next multiple.
            mean_resizing: new words have the mean of the cluster's vectors; False: drawn as in a
                fresh model.
        Raises:
            ValueError: if the last cluster has no words left.
        """
        config = self.config
        n_token = config.vocab_size if new_num_tokens is None else new_num_tokens
        if pad_to_multiple_of is not None:
            n_token = -(-n_token // pad_to_multiple_of) * pad_to_multiple_of
        if n_token == config.vocab_size:
            return self.get_input_embeddings()
        first = [0, *config.cutoffs][-1]
        if n_token <= first:
            raise ValueError(
                f"resize_token_embeddings: {n_token} words, but the last cluster begins at {first}"
            )
        for part in self.modules():
            if isinstance(part, AdaptiveEmbedding | AdaptiveSoftmax):
                part.resize(n_token, None if mean_resizing else config.init_std)
        config.vocab_size = n_token
        self.tie_weights()
        return self.get_input_embeddings()


class TransfoXLModel(TransfoXLPreTrainedModel):
    """The layers, without a head."""

    def __init__(self, config: TransfoXLConfig) -> None:
        super().__init__(config)
        shape, _ = configs_of(config.to_dict())
        self.word_emb = AdaptiveEmbedding(shape)
        self.drop = Dropout(config.dropout)
        biases = None
        if not config.untie_r:
            biases = self.r_w_bias, self.r_r_bias = new_biases(config)
        self.layers = nn.ModuleList(TransfoXLLayer(config, biases) for _ in range(config.n_layer))
        self.pos_emb = DistanceEncoding(config.d_model)
        self.mem_len = config.mem_len
        self.post_init()

    @property
    def _tied_weights_keys(self) -> dict[str, str]:
        return shared_biases(configs_of(self.config.to_dict())[0])

    def reset_memory_length(self, mem_len: int) -> None:
        """Look back that many tokens from now on. Raises `ValueError` if 0 with `same_length`."""
        require_memory(mem_len, self.config.same_length)
        self.mem_len = mem_len

    def init_mems(self, bsz: int) -> list[Tensor] | None:
        """The memory before the first segment: zeros, which are attended to.

        None with `mem_len` 0.
        """
        if not self.mem_len:
            return None
        size = (self.mem_len, bsz, self.config.d_model)
        kind = {"dtype": self.dtype, "device": self.device}
        return [torch.zeros(size, **kind) for _ in range(self.config.n_layer)]

    def forward(
        self,
        input_ids: Tensor | None = None,
        mems: Sequence[Tensor] | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        attention_mask: Tensor | None = None,
        use_cache: bool | None = None,
        position_ids: Tensor | None = None,
    ) -> TransfoXLModelOutput | tuple[Any, ...]:
        """Read a segment.

        Args:
            input_ids: (B, T), or `inputs_embeds` (B, T, D), scaled as the model's own.
            mems: of the segment before.
            attention_mask: (B, T), or longer, of which the last T columns count: 0 for padding. A
                row with padding before its tokens is read as it would be alone: padding takes the
                place of the zeros of an empty memory.
            use_cache: False: return no `mems`.
            position_ids: (B, T) or (1, T), that count up by one from each token to the next. Where
                they begin makes no difference.
        Raises:
            ValueError: if neither or both of the inputs are given, or padding stands between `mems`
                and the tokens, or `mems` are not one of each layer, or `position_ids` do not count
                up.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        if mems is not None and len(mems) != self.config.n_layer:
            raise ValueError(f"{len(mems)} mems: must be {self.config.n_layer}, one of each layer")
        require_ascending(position_ids, attention_mask)
        h_BTD = self.word_emb(input_ids) if inputs_embeds is None else inputs_embeds
        n_row, n_new = h_BTD.shape[:2]
        is_token_BT = padding_of(attention_mask, n_new=n_new, has_mems=mems is not None)
        if mems is None:
            mems = self.init_mems(n_row)
        remembers = mems is not None and use_cache is not False
        output_attentions = self._asked(output_attentions, "output_attentions")
        h_BTD, memory, hids, attentions = self._through_layers(
            h_BTD, mems, is_token_BT, output_attentions, remembers=remembers
        )
        output_hidden_states = self._asked(output_hidden_states, "output_hidden_states")
        output = TransfoXLModelOutput(
            h_BTD,
            memory if remembers else None,
            (*hids, h_BTD) if output_hidden_states else None,
            tuple(attentions) if output_attentions else None,
        )
        return self._returned(output, return_dict)

    def _through_layers(
        self,
        h_BTD: Tensor,
        mems: Sequence[Tensor] | None,
        is_token_BT: Tensor | None,
        output_attentions: bool,
        *,
        remembers: bool,
    ) -> tuple[Tensor, list[Tensor], list[Tensor], list[Tensor]]:
        """What the last layer returns, the memory after the segment (empty unless the model
        `remembers`), each layer's input and attention probabilities.
        """
        n_mem = 0 if mems is None else mems[0].shape[0]
        span = Span(
            n_mem,
            h_BTD.shape[1],
            clamp_len=self.config.clamp_len,
            window=self.mem_len if self.config.same_length else -1,
            since_BT=since(is_token_BT, n_mem),
        )
        h_BTD = self.drop(h_BTD)
        feats_SD = self.drop(self.pos_emb(span.distances_S(h_BTD.device), h_BTD.dtype))
        memory = []
        hids = []
        attentions = []
        for i, layer in enumerate(self.layers):
            if is_token_BT is not None:  # zeros in every layer, as in an empty memory
                h_BTD = h_BTD.where(is_token_BT[..., None], 0.0)
            if mems is None:
                mem_BMD = h_BTD[:, :0]
            else:
                mem_BMD = mems[i].transpose(0, 1).to(h_BTD.dtype)
            hids.append(h_BTD)
            if remembers:
                memory.append(self._remembered(mem_BMD, h_BTD))
            h_BTD, prob_BNTS = layer(h_BTD, mem_BMD, feats_SD, span, output_attentions)
            attentions.append(prob_BNTS)
        return self.drop(h_BTD), memory, hids, attentions

    def _remembered(self, mem_BMD: Tensor, h_BTD: Tensor) -> Tensor:
        """The last `mem_len` of [memory, segment], (mem_len, B, D)."""
        both_BSD = torch.cat([mem_BMD, h_BTD], dim=1).detach()
        if self.mem_len:
            kept_BMD = both_BSD[:, -self.mem_len :]
        else:
            kept_BMD = both_BSD[:, :0]
        return kept_BMD.transpose(0, 1)
