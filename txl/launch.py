"""Start a program: threads that share the cores, and Ctrl-C that ends it in one line, also during imports."""

import os
import signal
import sys
from importlib import import_module
from types import FrameType
from typing import NoReturn

_WAITING = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
"""How long waiting threads spin before they sleep. If they spin for ever, programs that share the cores slow each other
down many times over; if not at all, the threads of one program wait for each other to wake up."""


def launch(name: str) -> None:
    """Import `txl.commands.<name>` and run it with the arguments of the command line; never returns."""
    if not _WAITING & os.environ.keys():  # read by OpenMP when torch is imported
        os.environ |= {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "20000"}
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
