#!/usr/bin/env python
"""Train a Transformer-XL on a folder of text; see txl/commands/train.py."""

import signal

if __name__ == "__main__":
    # asks a run to save and stop: it waits until the training listens, where it would kill what is still starting up
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})

    from txl.cli import run
    from txl.commands.train import main
    from txl.data_utils.files import DataError

    run(main, DataError)
