"""The console command: `txl train|eval|generate [flags]`, also `python -m txl ...`."""

import sys

COMMANDS = ("train", "eval", "generate")


def main() -> None:
    """Run the command that the first argument names, as train.py, eval.py and generate.py do."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in COMMANDS:
        asks = name in ("-h", "--help")
        usage = f"usage: txl {'|'.join(COMMANDS)} [flags]; txl train --help lists the flags of train"
        print(
            usage if asks else f"txl: {name or 'no command'}: not one of {', '.join(COMMANDS)}; {usage}",
            file=sys.stdout if asks else sys.stderr,
        )
        sys.exit(0 if asks else 2)
    sys.argv[:2] = [f"txl {name}"]

    from importlib import import_module

    from txl.cli import run
    from txl.data_utils.files import DataError

    run(import_module(f"txl.commands.{name}").main, DataError)


if __name__ == "__main__":
    main()
