"""Tokenizers of pretrained models: the ids are those of the library, whatever the text."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.tokenizer_files import KINDS, TEXT, write_folder
from txl.data_utils import pretrained
from txl.data_utils.config import tokenizer_of
from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.errors import DataError
from txl.data_utils.pretrained import InOnePiece, Pretrained
from txl.data_utils.tokens import MEASURES, Tokens, sizes_of

tokenizers = pytest.importorskip("tokenizers")

ANY_TEXT = st.text(
    st.one_of(st.characters(codec="utf-8", exclude_characters="\0"), st.sampled_from(" \n\tthe")),
    min_size=1,
)
Pair = tuple[Pretrained, Any]


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Our tokenizer of a folder, and the library's."""
    folder = tmp_path_factory.mktemp(request.param)
    theirs = write_folder(folder, request.param)
    return Pretrained.of_folder(folder, 1000), theirs


def theirs_of(theirs: Any, text: str) -> list[int]:
    return theirs.encode(text, add_special_tokens=False).ids


@settings(max_examples=60, deadline=None)
@given(text=ANY_TEXT)
def test_ids_and_text_are_those_of_the_library(pair: Pair, text: str) -> None:
    ours, theirs = pair
    encoded = ours.encode(text)
    assert encoded.ids.tolist() == theirs_of(theirs, text)
    assert ours.decoded(encoded.ids.tolist()) == theirs.decode(
        encoded.ids.tolist(), skip_special_tokens=False
    )
    if len(encoded.ends):
        assert (np.diff(encoded.ends) >= 0).all()


def test_a_text_comes_back(pair: Pair) -> None:
    """Half a character at the end too, as the library shows it."""
    ours, theirs = pair
    text = TEXT.replace("<s>", "")  # after which SentencePiece's kind puts a space
    ids = ours.encode(text).ids.tolist()
    assert ours.decoded(ids) == text
    assert "".join(map(ours.decoder(), ids)) == text
    half = ours.encode("the \U0001f600").ids.tolist()[:-1]
    assert "\ufffd" in ours.decoded(half)
    assert ours.decoded(half) == theirs.decode(half, skip_special_tokens=False)


def test_special_tokens_are_recognised_in_a_text(tmp_path: Path) -> None:
    write_folder(tmp_path, "smollm")
    ours = Pretrained.of_folder(tmp_path, 400)
    name = "<|im_start|>"
    ids = ours.encode(f"a{name}user\n").ids.tolist()
    assert ids.count(ours.index[name]) == 1
    assert ours.encode(name).ids.tolist() == [ours.index[name]]
    assert ours.special_in(name) == {}
    assert ours.encode("<|no_token|>").ids.tolist() != [ours.index[name]]


GOLDEN = [
    ("the end", [268, 271]),
    (" the", [259, 268]),
    ("a<s>the", [259, 265, 1, 268]),
    ("thé\n", [267, 198, 172, 13]),
    ("end  the", [271, 259, 268]),
]


@pytest.mark.parametrize(("text", "ids"), GOLDEN)
def test_golden_ids_of_a_tokenizer_with_byte_fallback(
    tmp_path: Path, text: str, ids: list[int]
) -> None:
    write_folder(tmp_path, "llama_2")
    assert Pretrained.of_folder(tmp_path, 300).encode(text).ids.tolist() == ids


def test_a_text_begins_as_the_post_processor_says(pair: Pair) -> None:
    ours, theirs = pair
    with_special = theirs.encode("the end").ids
    assert [*ours.begins, *ours.encode("the end").ids.tolist()] == with_special


def files_of(folder: Path, **files: Any) -> None:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def test_special_tokens_are_named_by_the_files_of_the_folder(tmp_path: Path) -> None:
    write_folder(tmp_path, "smollm", bos_token="<|begin|>", eos_token={"content": "<|im_end|>"})
    ours = Pretrained.of_folder(tmp_path, 400)
    assert (ours.bos_id, ours.eos_id, ours.stop_ids) == (0, 3, {3})
    assert ours.begins == ()
    files_of(tmp_path, generation_config={"eos_token_id": [1, 3]}, config={"eos_token_id": 2})
    ours = Pretrained.of_folder(tmp_path, 400)
    assert (ours.bos_id, ours.eos_id, ours.stop_ids) == (0, 3, {1, 3})
    write_folder(tmp_path, "smollm")
    files_of(tmp_path, generation_config={}, config={"eos_token_id": 2, "bos_token_id": 1})
    ours = Pretrained.of_folder(tmp_path, 400)
    assert (ours.bos_id, ours.eos_id, ours.stop_ids) == (1, 2, {2})
    write_folder(tmp_path, "smollm", bos_token=None, eos_token="<|end|>")
    assert Pretrained.of_folder(tmp_path, 400).bos_id == 1, "the end of a text begins one"


def test_the_template_of_a_chat_is_found_where_it_is_kept(tmp_path: Path) -> None:
    write_folder(tmp_path, "smollm")
    assert Pretrained.of_folder(tmp_path, 400).chat_template is None
    several = [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]
    write_folder(tmp_path, "smollm", chat_template=several)
    assert Pretrained.of_folder(tmp_path, 400).chat_template == "b"
    (tmp_path / "chat_template.jinja").write_text("c")
    assert Pretrained.of_folder(tmp_path, 400).chat_template == "c"


def test_rows_of_the_table_without_a_token_have_names(tmp_path: Path) -> None:
    theirs = write_folder(tmp_path, "smollm", eos_token="<|im_end|>")
    ours = Pretrained.of_folder(tmp_path, 400)
    assert len(ours) == 400
    assert ours.words[theirs.get_vocab_size()] == f"<no token {theirs.get_vocab_size()}>"
    again = tokenizer_of("pretrained", ours.files().__getitem__)
    assert isinstance(again, Pretrained)
    assert (again.special, again.words, again.content) == (ours.special, ours.words, ours.content)
    assert again.encode(TEXT).ids.tolist() == ours.encode(TEXT).ids.tolist()


def test_a_bad_folder_is_one_line(tmp_path: Path) -> None:
    def said(n_token: int = 400) -> str:
        with pytest.raises(DataError) as refused:
            Pretrained.of_folder(tmp_path, n_token)
        assert "\n" not in str(refused.value)
        return str(refused.value)

    assert "has no tokenizer.json" in said()
    write_folder(tmp_path, "smollm")
    assert "tokens, and the model 100" in said(100)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    assert "tokenizer_config.json: no object of JSON" in said()
    for content in ("{", "[]", '{"model": 1}', '{"model": {"vocab": {}}, "added_tokens": [{}]}'):
        (tmp_path / "tokenizer_config.json").write_text("{}")
        (tmp_path / "tokenizer.json").write_text(content)
        assert "no tokenizer of the model" in said()
    write_folder(tmp_path, "smollm", eos_token="<|end|>")
    files_of(tmp_path, generation_config={"eos_token_id": 400})
    assert "a special token is none of the vocabulary" in said()


@pytest.mark.parametrize("step", [1, 37, 5000])
def test_a_long_text_in_parts_has_the_ids_of_the_whole(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    ours, theirs = pair
    whole = theirs_of(theirs, TEXT)
    monkeypatch.setattr(pretrained, "_WINDOW", 150)
    monkeypatch.setattr(pretrained, "_OVERLAP", 100)
    piece = InOnePiece(ours.encode_window)
    for _ in range(2):  # the second begins anew
        found = []
        for begin in range(0, len(TEXT), step):
            is_last = begin + step >= len(TEXT)
            found += piece.add(TEXT[begin : begin + step], is_last=is_last)
        assert len(found) > 3
        assert [i for _, tokens in found for i in tokens.ids.tolist()] == whole
        assert "".join(text for text, _ in found) == TEXT
        sums = sum(sizes_of(text, tokens.ends).sum(axis=0) for text, tokens in found)
        assert sums.tolist() == sizes_of(TEXT, np.array([len(TEXT)])).sum(axis=0).tolist()
    ids, ends, _ = ours.encode(TEXT)
    assert ids.tolist() == whole
    assert ends[-1] == len(TEXT)
    assert (np.diff(ends) >= 0).all()


def test_a_text_whose_parts_have_other_tokens_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the tokens are pairs of characters from the beginning of the window on."""
    monkeypatch.setattr(pretrained, "_WINDOW", 10)
    monkeypatch.setattr(pretrained, "_OVERLAP", 5)

    def pairs(text: str) -> Tokens:
        ends = np.array([*range(2, len(text), 2), len(text)])
        return Tokens(ends.astype(np.uint32), ends)

    piece = InOnePiece(pairs)
    with pytest.raises(DataError, match="shorter files"):
        piece.add("abcdefghijk" * 9, is_last=True)


def corpus(folder: Path, tmp_path: Path, **flags: Any) -> Corpus:
    path = str(tmp_path / "model" / "tokenizer.json")
    return Corpus(DataConfig(data=str(folder), dataset="pretrained", tokenizer=path, **flags))


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_one_text_and_nothing_is_added_or_cut(tmp_path: Path, kind: str) -> None:
    """No token at line ends or at the end, no line end where the file has none; headings and blank lines do not cut."""
    theirs = write_folder(tmp_path / "model", kind)
    folder = tmp_path / "text"
    folder.mkdir()
    contents = {"train": TEXT, "valid": f"\n = A =\n\n\n{TEXT}b", "test": f"{TEXT}\n\n = B =\n\n c"}
    for split, text in contents.items():
        (folder / f"{split}.txt").write_bytes(text.encode())
    opened = corpus(folder, tmp_path)
    for split, text in contents.items():
        assert opened.split(split).tolist() == theirs_of(theirs, text)
        assert opened.document_starts(split).tolist() == [0]
    sizes = opened.sizes("valid")
    counted = (sizes["characters"].sum(), sizes["bytes"].sum(), sizes["words"].sum())
    text = contents["valid"]
    assert counted == (len(text), len(text.encode()), len(text.split()))
    assert set(MEASURES) < sizes.keys()
    by_heading = corpus(folder, tmp_path, documents="heading")
    assert len(by_heading.document_starts("test")) == 2


def test_a_data_set_of_a_model_needs_its_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "valid.txt").write_text("a")
    (tmp_path / "test.txt").write_text("a")
    with pytest.raises(DataError, match="--tokenizer"):
        Corpus(DataConfig(data=str(tmp_path), dataset="pretrained"))
    with pytest.raises(DataError, match=r"other\.json: name the tokenizer\.json"):
        Corpus(DataConfig(data=str(tmp_path), dataset="pretrained", tokenizer="other.json"))
