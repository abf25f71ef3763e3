"""The configuration of TransfoXL models."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedConfig  # pyright: ignore[reportMissingImports]

from txl.convert.huggingface import DEFAULTS


class TransfoXLConfig(PreTrainedConfig):
    """Names and defaults of transformers 4; the defaults are the published WikiText-103 model.

    Args:
        vocab_size, d_model, d_embed, n_head, d_head, d_inner, n_layer: sizes.
        cutoffs: first id of each tail cluster of the adaptive embedding and softmax.
        div_val: cluster i has embeddings of d_embed // div_val^i.
        pre_lnorm: LayerNorm before each sub-layer instead of after it.
        mem_len: tokens of memory.
        clamp_len: larger distances share the position encoding of this one; -1 or 0: off.
        same_length: every token attends to mem_len keys, itself included.
        proj_share_all_but_first: embedding and softmax share the projections of all tail clusters;
            `tie_projs` says it for each cluster.
        untie_r: each layer has its own position biases.
        layer_norm_epsilon: is added to the variance in LayerNorm.
        init, init_range, init_std, proj_init_std: how fresh weights are drawn.
        trainer_compatible: a tuple output begins with the mean loss.
    """

    model_type = "transfo-xl"
    keys_to_ignore_at_inference = ["mems"]  # noqa: RUF012
    attribute_map = {  # noqa: RUF012
        "n_token": "vocab_size",
        "hidden_size": "d_model",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    }

    def __init__(
        self,
        vocab_size: int = 267735,
        cutoffs: Sequence[int] = DEFAULTS["cutoffs"],
        d_model: int = 1024,
        d_embed: int = DEFAULTS["d_embed"],
        n_head: int = 16,
        d_head: int = 64,
        d_inner: int = 4096,
        div_val: int = DEFAULTS["div_val"],
        pre_lnorm: bool = DEFAULTS["pre_lnorm"],
        n_layer: int = 18,
        mem_len: int = DEFAULTS["mem_len"],
        clamp_len: int = DEFAULTS["clamp_len"],
        same_length: bool = DEFAULTS["same_length"],
        proj_share_all_but_first: bool = DEFAULTS["proj_share_all_but_first"],
        attn_type: int = 0,
        sample_softmax: int = -1,
        adaptive: bool = True,
        dropout: float = DEFAULTS["dropout"],
        dropatt: float = DEFAULTS["dropatt"],
        untie_r: bool = DEFAULTS["untie_r"],
        init: str = "normal",
        init_range: float = 0.01,
        proj_init_std: float = 0.01,
        init_std: float = 0.02,
        layer_norm_epsilon: float = DEFAULTS["layer_norm_epsilon"],
        eos_token_id: int | None = 0,
        pad_token_id: int | None = None,
        tie_projs: Sequence[bool] | None = None,
        tie_word_embeddings: bool = True,
        trainer_compatible: bool = False,
        **others: Any,
    ) -> None:
        own = dict(locals())  # the arguments
        for name in ("self", "others", "__class__"):
            own.pop(name, None)
        own["cutoffs"] = list(cutoffs)
        own["tie_projs"] = (
            [False] + [proj_share_all_but_first] * len(cutoffs)
            if tie_projs is None
            else list(tie_projs)
        )
        del own["proj_share_all_but_first"]
        for name, value in own.items():
            setattr(self, name, value)
        super().__init__(**others)
        for name, value in own.items():  # the base class sets its own defaults for some
            setattr(self, name, value)
        # there is none, and code that is not of this model asks
        self.bos_token_id = others.get("bos_token_id")
        for name in self.attribute_map:  # the other names of the same fields
            if name in others:
                setattr(self, name, others[name])
