"""The console command: `txl train|eval|generate|convert [flags]`, also `python -m txl ...`."""

import sys

from txl.launch import launch

COMMANDS = ("train", "eval", "generate", "convert")


def main() -> None:
    """Run the command of the first argument."""
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
    launch(name)


if __name__ == "__main__":
    main()
