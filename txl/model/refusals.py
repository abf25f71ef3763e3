"""Settings that parts of a model do not work with."""

from typing import Any

from txl.config import Context, ModelConfig, UsageError, require
from txl.registry import ATTENTION_RULES, MEMORIES, POSITIONS


def require_context(model: Any, context: Context, *, has_documents: bool) -> None:
    """Raise `UsageError` if a model cannot read text in this context, or texts of documents."""
    require_serves(model.layers[0].attn.pos, context)
    require_works(model.config.memory, context)
    if has_documents:
        require_masks_documents(model.config)


def require_serves(encoding: Any, context: Context, *, can_change: bool = True) -> None:
    """Raise `UsageError` if the encoding does not support this context.

    Args:
        can_change: another encoding can be chosen, as for a new model; False: the model is trained.
    """
    if encoding.clamps or context.clamp_len <= 0:
        return
    change = ""
    if can_change:
        names = []
        for name, cls in POSITIONS.items():
            if cls.clamps and cls.needs_scores():
                names.append(name)
        change = f", or use --position {' or '.join(names)}"
    raise UsageError(
        f"--clamp_len {context.clamp_len}: --position {encoding.name} has no distances that could "
        f"be clamped; leave it out (-1){change}"
    )


def require_works(memory: str, settings: Any, *, can_change: bool = True) -> None:
    """Raise `UsageError` if there is no such memory, or it does not work with a field of these
    settings, see `Traits.works_with`.

    Args:
        can_change: another memory can be chosen, as for a new model; False: the model is trained.
    """
    for name, allowed in MEMORIES[memory].traits.works_with.items():
        given = getattr(settings, name, None)
        values = given if isinstance(given, tuple) else (given,)  # several lengths may be compared
        refused = []
        for value in values:
            if value is not None and value not in allowed:
                refused.append(value)
        if refused:
            raise UsageError(_refusal(memory, name, refused[0], allowed, can_change=can_change))


def _refusal(
    memory: str, name: str, value: Any, allowed: tuple[Any, ...], *, can_change: bool
) -> str:
    flag = f"--{name} {value}"
    works = f"works with {' or '.join(map(str, allowed))} only"
    if value is True:
        flag = f"--{name}"
        works = "does not work with it"
    change = ""
    if can_change:
        tables = {}
        for other, rule in MEMORIES.items():
            tables[other] = rule.traits.works_with
        others = []
        for other, table in tables.items():
            if value in table.get(name, (value,)):
                others.append(other)
        change = f", or use --memory {' or '.join(others)}"
    return f"{flag}: --memory {memory} {works}; leave it out{change}"


def require_masks_documents(config: ModelConfig) -> None:
    """Raise `UsageError` if the attention rule or the memory cannot tell the documents of a row
    apart."""
    require(
        MEMORIES[config.memory].traits.masks_documents,
        f"--memory {config.memory}: it is read in all documents of a row; read them in rows of "
        f"their own (train without --reset)",
    )
    masking = []
    for name, rule in ATTENTION_RULES.items():
        if getattr(rule, "masks_documents", False):
            masking.append(name)
    require(
        config.attention in masking,
        f"--attention {config.attention}: this rule does not mask the documents of a row; read "
        f"documents in rows of their own (train without --reset), or use --attention"
        f" {' or '.join(masking)}",
    )
