"""Start a program so that Ctrl-C ends it in one line, also while libraries are being imported."""

import os
import signal
import sys
from importlib import import_module
from types import FrameType
from typing import NoReturn


def launch(name: str) -> None:
    """Import `txl.commands.<name>` and run it with the arguments of the command line; never returns."""
    if name == "train":
        # SIGUSR1 asks a run to save and stop: blocked until the training handles it, or it would kill the process
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # else a shell started us with it ignored
        signal.signal(signal.SIGINT, _end)
    main = import_module(f"txl.commands.{name}").main
    run = import_module("txl.cli").run
    signal.signal(signal.SIGINT, before)
    run(main)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """End at once: partially imported libraries catch exceptions, or turn them into others."""
    os.write(2, f"{os.path.basename(sys.argv[0])}: interrupted\n".encode())
    os._exit(130)
