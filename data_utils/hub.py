"""WikiText from the parquet files of the Hugging Face hub, written as the published text files are."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from txl.files import written_whole

from .file_formats import parquet_rows
from .raw_text import DataError
from .transfer import fits

REPOSITORY = "Salesforce/wikitext"
_SPLITS = {"train": "train", "valid": "validation", "test": "test"}


def from_hub(config: str, n_file: dict[str, int], digests: dict[str, str], folder: Path) -> None:
    """Write train.txt, valid.txt and test.txt from the parquet files of a configuration of Salesforce/wikitext.

    Args:
        n_file: parquet files of each split.
        digests: of the text files, see `txl.data_utils.transfer.fits`.
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
                        file.write((text or " \n").encode())  # the hub leaves out what a blank line holds
            if not fits(temporary, digests[split]):
                raise DataError(f"{REPOSITORY}, {config}: its {split} split is not the published text")


def _fetcher() -> Callable[[str], Path]:
    try:
        import pyarrow.parquet  # noqa: F401  # pyright: ignore[reportMissingImports] (an extra)
        from huggingface_hub import hf_hub_download
        from huggingface_hub.utils import logging
    except ImportError as error:
        raise DataError(f"the hub needs {error.name}: pip install huggingface_hub pyarrow") from None

    logging.set_verbosity_error()  # what fails is said once, at the end

    def fetched(name: str) -> Path:
        try:
            return Path(hf_hub_download(REPOSITORY, name, repo_type="dataset"))
        except Exception as error:  # its own, those of its HTTP library and of the disk
            raise DataError(f"{REPOSITORY}/{name}: {str(error).splitlines()[0] or type(error).__name__}") from None

    return fetched
