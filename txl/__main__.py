"""The console command: `txl PROGRAM [flags]`, also `python -m txl ...`."""

import os
import sys

from txl.programs.launch import GONE, PROGRAMS, launch, refuse_gone


def main() -> None:
    """Run the program of the first argument."""
    if len(sys.argv) > 1:
        name = sys.argv[1]
    else:
        name = ""
    if name in PROGRAMS:
        sys.argv[:2] = [f"txl {name}"]
        launch(name)
    if name in GONE:
        refuse_gone(name)
    if name in ("-h", "--help"):
        show_programs()
        sys.exit(0)
    print(
        f"txl: {name or 'no program'}: none of {', '.join(PROGRAMS)}; see txl --help",
        file=sys.stderr,
    )
    sys.exit(2)


def show_programs() -> None:
    """Print what the programs do, as far as somebody reads it."""
    lines = ["usage: txl PROGRAM [flags]; txl PROGRAM --help lists the flags of one", ""]
    for title, program in PROGRAMS.items():
        lines.append(f"  {title:<11} {program.does:<68} {program.same}")
    try:
        print("\n".join(lines), flush=True)
    except BrokenPipeError:  # `txl --help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
