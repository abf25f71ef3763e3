"""Errors of those who use the programs."""


class UsageError(ValueError):
    """An error that the user can fix.

    The message names the thing, what is wrong with it and what to do.
    """


class RunFailed(RuntimeError):
    """A run could not go on, through no fault of whoever started it; programs end with status 1."""


def require(condition: bool, message: str) -> None:
    """Raise `UsageError` with `message` unless `condition` holds."""
    if not condition:
        raise UsageError(message)
