"""Words of a text file read a second: our vocabulary and token file from nothing beside a plain loop that counts and
encodes; and our tokenising with a known vocabulary beside Hugging Face's tokenizers.

    python -m lab.benchmarks.tokenise --text FILE [--peer PYTHON] [--pairs 7] [--json FILE]

The environment of the other program: python3 -m venv DIR && DIR/bin/pip install torch==2.13.0 tokenizers. It keeps the
ids in memory, on as many threads as it likes; ours are written to the disk, with the text's fingerprint.
"""

import argparse
from pathlib import Path

from lab.benchmarks.peers import Peer, compare, positive, rows, say_machine, write


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--text", required=True, help="a UTF-8 file whose words are separated by white space"
    )
    parser.add_argument("--peer", metavar="PYTHON", help="of an environment with tokenizers")
    parser.add_argument(
        "--pairs", type=positive, default=7, help="times that each program is asked [7]"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    args = parser.parse_args()
    try:
        with open(args.text, encoding="utf-8") as file:
            n_token = sum(len(line.split()) + 1 for line in file)
    except (OSError, UnicodeDecodeError) as error:
        parser.error(
            f"--text {args.text}: {getattr(error, 'strerror', None) or error}; name a file of UTF-8 text"
        )
    if not n_token:
        parser.error(f"--text {args.text}: is empty; name a file of UTF-8 text")
    say_machine()
    label, found = f"{Path(args.text).name}, {n_token} tokens", []
    for task in ("prepare", "tokenise") if args.peer else ("prepare",):
        peers = [Peer("data_utils", args.text)]
        if task == "prepare":
            peers.append(Peer("plain_loop", args.text))
        if args.peer and task == "tokenise":
            peers.append(Peer("tokenizers", args.text, python=args.peer))
        compare(peers, task, 1, pairs=args.pairs)
        for peer in peers:
            peer.close()
        found += rows(peers, label, task, n_token)
    write(args.json, {"rows": found})


if __name__ == "__main__":
    main()
