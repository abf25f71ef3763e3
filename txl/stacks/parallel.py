"""Layers whose attention and feed-forward network read the same input."""

from torch import Tensor

from txl.model.layer import Layer


class ParallelLayer(Layer):
    """h' = h + attn(norm_1(h)) + ff(norm_2(h)), in place of one after the other.

    Source: Wang and Komatsuzaki 2021 (GPT-J); Black et al. 2022 (GPT-NeoX-20B, arXiv 2204.06745),
    sec. 2.1.
    """

    def finish(self, x_BTD: Tensor, attention_BTD: Tensor) -> Tensor:
        """See `Layer.finish`."""
        return x_BTD + self.attn_drop(attention_BTD) + self.feed_forward(x_BTD)
