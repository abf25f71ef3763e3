"""A study whose programs are forked from its runner: they start at once, and one of them can be trapped."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from tests.resume.traps import lay
from txl.cli import run
from txl.studies import __main__, runner


def study(flags: list[str], trap: dict[str, Any] | None = None) -> None:
    """`python -m txl.studies`. The trap is in each training; see `lay`."""

    def forked(words: Sequence[str], *, stdout: Any, pass_fds: Sequence[int], **_: Any) -> Any:
        if pid := os.fork():
            return SimpleNamespace(returncode=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        for number in (1, 2):
            os.dup2(stdout.fileno(), number)
        for descriptor in set(range(3, 100)) - set(pass_fds):  # locks of other tasks
            os.closerange(descriptor, descriptor + 1)
        name, *sys.argv[1:] = words[3:]
        if trap and name == "train":
            lay(**trap)
        try:
            run(import_module(f"txl.commands.{name}").main)
        except SystemExit as end:
            os._exit(int(end.code or 0))
        finally:
            os._exit(70)

    runner.subprocess = SimpleNamespace(run=forked, DEVNULL=None)  # type: ignore[assignment]
    sys.argv = ["txl.studies", *flags]
    run(__main__.main)
