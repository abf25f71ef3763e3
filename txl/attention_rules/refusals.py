"""Settings that attention rules other than softmax do not support."""

from txl.config import ModelConfig, UsageError, require
from txl.registry import POSITIONS


def require_scoreless(config: ModelConfig) -> None:
    """Raise `UsageError` if the position encoding needs the scores of all pairs."""
    if not POSITIONS[config.position].needs_scores():
        return
    usable = sorted(name for name, cls in POSITIONS.items() if not cls.needs_scores())
    if usable:
        others = f", or --attention {config.attention} with --position {' or '.join(usable)}"
    else:
        others = ""
    raise UsageError(
        f"--attention {config.attention} --position {config.position}: the rule does not compute"
        f" the scores of all pairs, which this encoding needs; use --attention softmax{others}"
    )


def require_no_dropatt(config: ModelConfig, dropatt: float) -> None:
    """Raise `UsageError` on dropout of attention probabilities, which the rule does not compute."""
    require(
        dropatt == 0,
        f"--dropatt {dropatt} --attention {config.attention}: this rule has no matrix of"
        " probabilities to drop from; leave --dropatt out, or use --attention softmax",
    )
