"""No positions at all."""

from txl.positions.base import PositionEncoding


class NoPosition(PositionEncoding):
    """Queries and keys have no positions.

    logit_ts = H^(-1/2) q_t.k_s

    A causal model can still infer positions from the number of visible keys (Haviv et al. 2022,
    arXiv 2203.16634).
    Works with: softmax, performer, lsh.
    Cost: nothing. No weights.
    Beyond the trained length: works, with more keys than in training.
    """
