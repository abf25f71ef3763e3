"""`TransfoXLLMHeadModel` and `TransfoXLForSequenceClassification` of transformers 4, computed by
our model; stop strings of `generate` with a vocabulary of words.

transformers finds out what each token adds to a text by decoding it after "abcdef", which is no
word. Here the text is decoded.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (  # pyright: ignore[reportMissingImports]
    GenerationMixin,
    StoppingCriteria,
)
from transformers.utils import ModelOutput  # pyright: ignore[reportMissingImports]

from txl.convert.huggingface import configs_of
from txl.convert.kimiyoung import tied_names
from txl.hf.adaptive import AdaptiveSoftmax
from txl.hf.config import TransfoXLConfig
from txl.hf.model import TransfoXLModel, TransfoXLPreTrainedModel, tokens_of

IGNORED = -100
"""The label of tokens that are not scored."""


@dataclass
class TransfoXLLMHeadModelOutput(ModelOutput):
    """Attributes:
    losses: nats of the second token on, (B, T - 1), in the order of the text; 0 where the label is
    -100. prediction_scores: log-probabilities of the next word, (B, T, V); empty where labels are
    given.
    mems, hidden_states, attentions: see `TransfoXLModelOutput`.
    loss: mean over the scored tokens.
    """

    losses: Tensor | None = None
    prediction_scores: Tensor | tuple[()] | None = None
    mems: list[Tensor] | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    loss: Tensor | None = None

    @property
    def logits(self) -> Any:
        """`prediction_scores`."""
        return self.prediction_scores


class TransfoXLLMHeadModel(TransfoXLPreTrainedModel, GenerationMixin):
    """The language model, with the adaptive softmax."""

    _is_stateful = True  # a memory of a fixed length cannot go back

    def __init__(self, config: TransfoXLConfig) -> None:
        super().__init__(config)
        self.transformer = TransfoXLModel(config)
        self.crit = AdaptiveSoftmax(configs_of(config.to_dict())[0])
        self.post_init()

    @property
    def _tied_weights_keys(self) -> dict[str, str]:
        shape, _ = configs_of(self.config.to_dict())
        return {name: f"transformer.{first}" for name, first in tied_names(shape).items()}

    def get_output_embeddings(self) -> nn.Module:
        """The linear layer of the last cluster's words, as in transformers 4; of all words if there
        is one layer.
        """
        return self.crit.out_layers[-1]

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Put another module in place of that layer."""
        self.crit.out_layers[-1] = new_embeddings

    def reset_memory_length(self, mem_len: int) -> None:
        """Look back that many tokens from now on."""
        self.transformer.reset_memory_length(mem_len)

    def init_mems(self, bsz: int) -> list[Tensor] | None:
        """See `TransfoXLModel.init_mems`."""
        return self.transformer.init_mems(bsz)

    def forward(
        self,
        input_ids: Tensor | None = None,
        mems: Sequence[Tensor] | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        attention_mask: Tensor | None = None,
        use_cache: bool | None = None,
        position_ids: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
    ) -> TransfoXLLMHeadModelOutput | tuple[Any, ...]:
        """Read a segment; arguments as `TransfoXLModel.forward`.

        Args:
            labels: (B, T), the ids of the segment itself, which are shifted here; -100, and what
                follows padding: not scored.
            logits_to_keep: how many of the last tokens get scores, or which ones; 0: all. With
                labels there are none.
        """
        out = self.transformer(
            input_ids,
            mems,
            inputs_embeds,
            output_attentions,
            output_hidden_states,
            True,
            attention_mask,
            use_cache,
            position_ids,
        )
        hidden_BTD = out.last_hidden_state
        scores, losses, loss = (), None, None
        if labels is None:
            keep = logits_to_keep
            if isinstance(keep, int):
                keep = slice(-keep, None)
            scores = self.crit(hidden_BTD[:, keep])
        else:
            target_BT = labels[:, 1:]
            is_scored_BT = target_BT != IGNORED
            # the first token after padding has none before it, as in a row alone
            if attention_mask is not None:
                is_scored_BT &= tokens_of(attention_mask, labels.shape[1])[:, :-1]
            known_BT = target_BT.where(is_scored_BT, 0)
            losses = self.crit(hidden_BTD[:, :-1], known_BT).where(is_scored_BT, 0.0)
            loss = losses.sum() / is_scored_BT.sum().clamp(min=1)
        rest = {name: out[name] for name in ("mems", "hidden_states", "attentions") if name in out}
        is_tuple = not self._asked(return_dict, "return_dict")
        if is_tuple and losses is not None and self.config.trainer_compatible:
            return (loss, scores, losses, *rest.values())
        output = TransfoXLLMHeadModelOutput(losses, scores, **rest, loss=loss)
        return output.to_tuple() if is_tuple else output

    def _get_stopping_criteria(self, generation_config: Any, *args: Any, **kwargs: Any) -> Any:
        stop_strings = generation_config.stop_strings
        tokenizer = kwargs.get("tokenizer")
        if stop_strings is None or tokenizer is None:
            return super()._get_stopping_criteria(generation_config, *args, **kwargs)
        without_strings = copy.copy(generation_config)
        without_strings.stop_strings = None
        criteria = super()._get_stopping_criteria(without_strings, *args, **kwargs)
        criteria.append(StopWords(tokenizer, stop_strings))
        return criteria

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        mems: Sequence[Tensor] | None = None,
        is_remembered: bool = False,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        attention_mask: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        inputs_embeds: Tensor | None = None,
        n_written: int = 0,
        **_: Any,
    ) -> dict[str, Any]:
        """The whole prompt at first, with the memory that was given; then the last token only."""
        segment: dict[str, Tensor] = {
            "input_ids": input_ids[:, -1:] if is_remembered else input_ids
        }
        if inputs_embeds is not None and not is_remembered:
            new_embeds = self.get_input_embeddings()(input_ids[:, input_ids.shape[1] - n_written :])
            segment = {"inputs_embeds": torch.cat([inputs_embeds, new_embeds], dim=1)}
        return {
            **segment,
            "attention_mask": attention_mask,
            "mems": mems,
            "output_attentions": output_attentions,
            "output_hidden_states": output_hidden_states,
            "logits_to_keep": logits_to_keep,
        }

    def _update_model_kwargs_for_generation(
        self, outputs: Any, model_kwargs: dict[str, Any], **_: Any
    ) -> Any:
        if (mask_BT := model_kwargs.get("attention_mask")) is not None:
            model_kwargs["attention_mask"] = F.pad(mask_BT, (0, 1), value=1)
        model_kwargs["n_written"] = model_kwargs.get("n_written", 0) + 1
        if outputs.mems is None or not model_kwargs.get("use_cache", True):
            return model_kwargs
        return model_kwargs | {"mems": outputs.mems, "is_remembered": True}

    @staticmethod
    def _reorder_cache(mems: Sequence[Tensor], beam_idx: Tensor) -> list[Tensor]:
        return [mem_MBD.index_select(1, beam_idx.to(mem_MBD.device)) for mem_MBD in mems]


@dataclass
class TransfoXLSequenceClassifierOutputWithPast(ModelOutput):
    """Attributes:
    loss: if labels are given.
    logits: (B, num_labels).
    mems, hidden_states, attentions: see `TransfoXLModelOutput`.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    mems: list[Tensor] | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class TransfoXLForSequenceClassification(TransfoXLPreTrainedModel):
    """A linear layer over the last token of each text; the last before the padding if
    `pad_token_id` is set.
    """

    def __init__(self, config: TransfoXLConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.transformer = TransfoXLModel(config)
        self.score = nn.Linear(config.d_model, config.num_labels, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        mems: Sequence[Tensor] | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        attention_mask: Tensor | None = None,
        use_cache: bool | None = None,
        position_ids: Tensor | None = None,
    ) -> TransfoXLSequenceClassifierOutputWithPast | tuple[Any, ...]:
        """Classify texts; arguments as `TransfoXLModel.forward`.

        Args:
            labels: (B,), classes; numbers where num_labels is 1 (squared error); (B, num_labels) of
                0 and 1 where `problem_type` is multi_label_classification.
        Raises:
            ValueError: if several texts have neither `attention_mask` nor `pad_token_id`, which
                says where each ends.
        """
        out = self.transformer(
            input_ids,
            mems,
            inputs_embeds,
            output_attentions,
            output_hidden_states,
            True,
            attention_mask,
            use_cache,
            position_ids,
        )
        hidden_BTD = out.last_hidden_state
        n_row, n_new = hidden_BTD.shape[:2]
        pad = self.config.pad_token_id
        if attention_mask is None and pad is None and n_row > 1:
            raise ValueError("several texts at once need attention_mask or config.pad_token_id")
        if attention_mask is not None:
            is_token_BT = tokens_of(attention_mask, n_new)
        elif pad is not None and input_ids is not None:
            is_token_BT = input_ids != pad
        else:
            is_token_BT = hidden_BTD.new_ones(n_row, n_new, dtype=torch.bool)
        place_T = torch.arange(n_new, device=hidden_BTD.device)
        last_B = place_T.where(is_token_BT, 0).amax(1)
        logits = self.score(hidden_BTD[torch.arange(n_row, device=hidden_BTD.device), last_B])
        output = TransfoXLSequenceClassifierOutputWithPast(
            None if labels is None else self._loss(logits, labels),
            logits,
            out.mems,
            out.hidden_states,
            out.attentions,
        )
        return self._returned(output, return_dict)

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        kind = self.config.problem_type
        if kind == "regression" or (kind is None and self.num_labels == 1):
            return F.mse_loss(
                logits.squeeze(-1) if self.num_labels == 1 else logits, labels.to(logits.dtype)
            )
        if kind == "single_label_classification" or (
            kind is None and not labels.is_floating_point()
        ):
            return F.cross_entropy(logits, labels)
        return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))


_MARGIN = 8
"""Tokens decoded besides those that a stop string can consist of: joined numbers take three for
one.
"""


class StopWords(StoppingCriteria):
    """Ends a row in whose text, as the tokenizer decodes it, the last token completes a stop
    string.
    """

    def __init__(self, tokenizer: Any, stop_strings: str | Sequence[str]) -> None:
        self._tokenizer = tokenizer
        if isinstance(stop_strings, str):
            self._stop_strings = [stop_strings]
        else:
            self._stop_strings = list(stop_strings)
        self._n_recent = max(map(len, self._stop_strings), default=0) + _MARGIN

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        """True for each row (B, T) that ends."""
        return torch.tensor([*map(self._is_completed, input_ids.tolist())], device=input_ids.device)

    def _is_completed(self, ids: list[int]) -> bool:
        recent = _without_spaces(self._tokenizer.decode(ids[-self._n_recent :]))
        possible = [stop for stop in self._stop_strings if _without_spaces(stop) in recent]
        if not possible:
            return False  # spares decoding the whole text, on which spaces around quotes depend
        text = self._tokenizer.decode(ids)
        before = self._tokenizer.decode(ids[:-1])
        return any(text.rfind(stop) not in (-1, before.rfind(stop)) for stop in possible)


def _without_spaces(text: str) -> str:
    return "".join(text.split())
