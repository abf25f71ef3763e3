"""The console command: `txl PROGRAM [flags]`, also `python -m txl ...`."""

import sys

from txl.cli.launch import PROGRAMS, launch


def main() -> None:
    """Run the program of the first argument."""
    if len(sys.argv) > 1:
        name = sys.argv[1]
    else:
        name = ""
    if name in PROGRAMS:
        sys.argv[:2] = [f"txl {name}"]
        launch(name)
    if name in ("-h", "--help"):
        print("usage: txl PROGRAM [flags]; txl PROGRAM --help lists the flags of one\n")
        for title, program in PROGRAMS.items():
            print(f"  {title:<11} {program.does:<68} {program.same}")
        sys.exit(0)
    print(
        f"txl: {name or 'no program'}: none of {', '.join(PROGRAMS)}; see txl --help",
        file=sys.stderr,
    )
    sys.exit(2)


if __name__ == "__main__":
    main()
