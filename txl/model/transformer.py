"""Transformer-XL: words in, memory and losses out. Its layers and their memory are in `txl.model.body`."""

import torch
from torch import Tensor

from txl.config import Context, ModelConfig, require
from txl.model.adaptive import AdaptiveEmbedding, AdaptiveSoftmax
from txl.model.body import AnyMemory, Body, Output, Part


class TransformerXL(Body):
    """A language model with segment-level recurrence (Dai et al. 2019, arXiv 1901.02860).

        hidden, memory = model(token_BT, memory, context)
        nll_BT, memory = model.nll(input_BT, target_BT, memory, context)

    The memory is passed in and returned; the module keeps no state. `memory=None` is an empty memory. `context` holds
    the segment and memory lengths, and may change from call to call.
    With `pre_lnorm` there is no LayerNorm after the last layer, as in the original.
    """

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0, dropatt: float = 0.0) -> None:
        super().__init__()
        require(config.n_token > 0, f"--n_token {config.n_token}: must be at least 1")
        self.word_emb = AdaptiveEmbedding(config)
        self.build(config, dropout=dropout, dropatt=dropatt)
        self.softmax = AdaptiveSoftmax(config, self.word_emb)

    def forward(
        self,
        token_BT: Tensor,
        memory: AnyMemory | None,
        context: Context,
        since_BT: Tensor | None = None,
        *,
        part: Part | None = None,
    ) -> Output:
        """Read a segment of token ids (B, T), which may be on the CPU, see `AdaptiveEmbedding`.

        Args:
            since_BT: how many tokens before each one, at least 0, belong to the same document; none before them is
                seen. Each row has its own borders. None: the text is one document.
            part: see `Body.read`.
        Raises:
            ValueError: if the memory has another batch size or takes no gradient, or an id is outside the vocabulary.
            UsageError: if the position encoding does not support the context, or the attention rule no documents.
        """
        return self.read(self.word_emb(token_BT), memory, context, since_BT, part=part)

    def nll(
        self,
        input_BT: Tensor,
        target_BT: Tensor,
        memory: AnyMemory | None,
        context: Context,
        since_BT: Tensor | None = None,
        *,
        same_weight: bool = False,
    ) -> tuple[Tensor, AnyMemory]:
        """Loss of each target in nats, (B, T), and the memory for the next segment.

        The input may be longer than the target (`ext_len`): targets belong to its last positions. Ids on the CPU avoid
        GPU synchronisation, see `AdaptiveSoftmax.nll`, also for `same_weight`.
        """
        nll_BT, _, memory = self.nll_and_hidden(input_BT, target_BT, memory, context, since_BT, same_weight=same_weight)
        return nll_BT, memory

    def nll_and_hidden(
        self,
        input_BT: Tensor,
        target_BT: Tensor,
        memory: AnyMemory | None,
        context: Context,
        since_BT: Tensor | None = None,
        *,
        same_weight: bool = False,
    ) -> tuple[Tensor, Tensor, AnyMemory]:
        """`nll`, with the hidden states (B, T, D) that the targets are predicted from between its results."""
        tables: list[Tensor] | None = None
        # one gradient for both uses of a tied table; a GPU would sum its rows in any order
        if torch.is_grad_enabled() and self.device.type == "cpu" and not (self.config.not_tied or self.is_sharded):
            tables = []
            out = self.read(self.word_emb(input_BT, tables), memory, context, since_BT)
        else:
            out = self(input_BT, memory, context, since_BT)
        hidden_BTD = out.hidden_BTD[:, -target_BT.shape[1] :]
        nll_BT = self.softmax.nll(hidden_BTD, target_BT, tables, same_weight=same_weight)
        return nll_BT, hidden_BTD, out.memory

    def log_prob(self, hidden: Tensor) -> Tensor:
        """Log-probabilities of all words, (..., V), for hidden states (..., D)."""
        return self.softmax.log_prob(hidden)
