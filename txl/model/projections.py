"""Matrices that make queries, keys and values of hidden states, with what some models add to them."""

from torch import Tensor, nn

from txl.config import ModelConfig
from txl.model.norms import RMSNorm
from txl.ops.linear import Linear


class NormedHeads(nn.Module):
    """A projection whose heads are normed one by one, with one weight for all of them.

        norm(y) = y / sqrt(mean(y^2) + eps) * w         for each head y of W x + b

    Source: queries and keys of Qwen3 (Yang et al. 2025, arXiv 2505.09388, sec. 2); RMSNorm: Zhang
    and Sennrich 2019 (arXiv 1910.07467), eq. 4.
    """

    def __init__(self, net: Linear, d_head: int, eps: float) -> None:
        super().__init__()
        self.net: nn.Linear = net
        self.norm = RMSNorm(d_head, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) to (..., N H)."""
        y = self.net(x)
        heads = y.unflatten(-1, (-1, self.norm.weight.shape[0]))
        return self.norm(heads).to(y.dtype).flatten(-2)


def build_projections(
    config: ModelConfig, *, shared_qk: bool
) -> tuple[nn.Module, nn.Module, nn.Module, nn.Module]:
    """Of queries, keys and values, (..., D) to (..., N H), and of what heads return, (..., N H) to
    (..., D).
    """
    q_net = _of_heads(config, config.n_head, has_norm=config.qk_norm)
    k_net = q_net
    if not shared_qk:
        k_net = _of_heads(config, config.n_key_head, has_norm=config.qk_norm)
    v_net = _of_heads(config, config.n_key_head)
    o_net = Linear(config.n_head * config.d_head, config.d_model, bias=config.o_bias)
    return q_net, k_net, v_net, o_net


def _of_heads(config: ModelConfig, n_head: int, *, has_norm: bool = False) -> nn.Module:
    net = Linear(config.d_model, n_head * config.d_head, bias=config.qkv_bias)
    if has_norm:
        return NormedHeads(net, config.d_head, config.layer_norm_epsilon)
    return net
