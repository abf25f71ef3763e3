"""Downloads from a server of this machine that behaves badly."""

import hashlib
import io
import re
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from txl.data_utils import download, remote
from txl.data_utils.download import SETS, DataSet
from txl.data_utils.errors import DataError
from txl.data_utils.remote import Remote, load

CONTENT = bytes(range(256)) * 400


class Server(ThreadingHTTPServer):
    """What it does is in the path: /cut/NAME sends half of what is asked, and so on."""

    daemon_threads = True
    asked: list[tuple[str, str | None]]
    content = CONTENT
    marks: dict[str, str]


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        how = self.path.split("/")[1]
        wanted = self.headers.get("Range")
        self.server.asked.append((how, wanted))
        whole = self.server.content
        if how == "missing":
            return self.send_error(404)
        if how == "moved":
            self.send_response(302)
            self.send_header("Location", self.path.replace("moved", "good"))
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if how == "wrong":
            whole = whole[::-1]
        same = self.headers.get("If-Range") in (None, *self.server.marks.values())
        begin = int(wanted[6:-1]) if wanted and same and how != "no_range" else 0
        body = whole[begin:]
        if begin >= len(whole):
            return self.send_error(416)
        self.send_response(206 if begin else 200)
        if begin:
            shown = begin + 1 if how == "other_range" else begin
            self.send_header("Content-Range", f"bytes {shown}-{len(whole) - 1}/{len(whole)}")
        n_said = len(body) + {"says_more": 1000, "says_less": -1000}.get(how, 0)
        for mark, value in self.server.marks.items():
            self.send_header(mark, value)
        self.send_header("Content-Length", str(n_said))
        self.send_header("Connection", "close")
        self.end_headers()
        n_sent = len(body)
        if how in ("cut", "no_range", "stalls") and len(self.server.asked) < 3:
            n_sent //= 2
        self.wfile.write(body[:n_sent])
        self.wfile.flush()
        if how == "stalls" and n_sent < len(body):
            n_asked = len(self.server.asked)
            while len(self.server.asked) == n_asked:  # until it is given up and asked for again
                time.sleep(0.01)
        self.close_connection = True


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Server(("127.0.0.1", 0), Handler) as server:
        server.asked, server.marks = [], {}
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()
        yield server
        server.shutdown()


def remote_of(server: Server, *ways: str, digest: str | None = None) -> Remote:
    address = f"http://127.0.0.1:{server.server_address[1]}"
    known = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}" if digest is None else digest
    return Remote("file.bin", [f"{address}/{how}/file.bin" for how in ways], known)


RANGES: dict[str, list[str | None]] = {  # what is asked for
    "good": [None],
    "cut": [None, "bytes=51200-", "bytes=76800-"],
    "no_range": [None, "bytes=51200-", "bytes=51200-"],
    "moved": [None, None],
    "missing good": [None, None],
    "wrong good": [None, None],
    "says_less good": [None, None],
    "says_more": [None, "bytes=102400-"],
}


@pytest.mark.parametrize("ways", RANGES)
def test_the_whole_file_comes_however_the_server_behaves(
    tmp_path: Path, server: Server, ways: str
) -> None:
    assert load(remote_of(server, *ways.split()), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert [asked for _, asked in server.asked] == RANGES[ways]
    assert [path.name for path in tmp_path.iterdir()] == ["file.bin"]
    assert not load(remote_of(server, "missing"), tmp_path)  # it is there


@pytest.mark.slow
def test_a_silent_server_is_asked_again(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "TIMEOUT_S", 0.4)
    monkeypatch.setattr(remote, "TRIES", 1000)  # a machine may be busy for longer
    assert load(remote_of(server, "stalls"), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert len(server.asked) > 1
    assert [asked for _, asked in server.asked][-1] is not None


@pytest.mark.parametrize(
    ("how", "reason"), [("wrong", "the file is another"), ("missing", "status 404")]
)
def test_without_a_mirror_one_line_says_what_to_do(
    tmp_path: Path, server: Server, how: str, reason: str
) -> None:
    said = rf"file.bin: .*{reason}.*put it \(sha256:\w+\) into {re.escape(str(tmp_path))}"
    with pytest.raises(DataError, match=said):
        load(remote_of(server, how), tmp_path)
    assert not (tmp_path / "file.bin").exists()


def test_what_does_not_go_on_from_the_beginning_that_is_there_is_thrown_away(
    tmp_path: Path, server: Server
) -> None:
    for begun, ways in ((b"not the beginning", ["good"]), (CONTENT[:100], ["other_range", "good"])):
        (tmp_path / "file.bin").unlink(missing_ok=True)
        (tmp_path / "file.bin.part").write_bytes(begun)
        server.asked.clear()
        assert load(remote_of(server, *ways), tmp_path)
        assert server.asked[0][1] == f"bytes={len(begun)}-"
        assert (tmp_path / "file.bin").read_bytes() == CONTENT


WITHOUT_DIGEST: dict[str, tuple[str, list[str | None]]] = {
    # what the server says of its content, and what is asked for
    "ETag": ('"1"', [None, "bytes=51200-", "bytes=76800-"]),
    "Last-Modified": ("Mon, 01 Jan 2024 00:00:00 GMT", [None, "bytes=51200-", "bytes=76800-"]),
    "nothing": ("", [None, None, None]),
}


@pytest.mark.parametrize("header", WITHOUT_DIGEST)
def test_without_a_digest_only_the_same_content_is_gone_on_with(
    tmp_path: Path, server: Server, header: str
) -> None:
    """And no beginning of an earlier try."""
    value, asked = WITHOUT_DIGEST[header]
    server.marks = {header: value} if value else {}
    (tmp_path / "file.bin.part").write_bytes(b"another")
    assert load(remote_of(server, "cut", digest=""), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert [range_asked for _, range_asked in server.asked] == asked


def test_another_file_under_the_name_is_left_alone(tmp_path: Path, server: Server) -> None:
    (tmp_path / "file.bin").write_bytes(b"mine")
    with pytest.raises(DataError, match=r"file.bin: is not the file of the data set"):
        load(remote_of(server, "good"), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == b"mine"


def zipped(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def tarred(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in files.items():
            one = tarfile.TarInfo(name)
            one.size = len(content)
            archive.addfile(one, io.BytesIO(content))
    return out.getvalue()


BILLION = "1-billion-word-language-modeling-benchmark-r13output"
SHUFFLED = "monolingual.tokenized.shuffled/news.en"
IN_ARCHIVE = {  # members, and what they become
    "wt2": (
        [f"wikitext-2/wiki.{s}.tokens" for s in ("train", "valid", "test")],
        ["test.txt", "train.txt"],
    ),
    "enwik8": (["enwik8"], ["enwik8"]),
    "lm1b": (
        [
            f"{BILLION}/.svn/x",
            f"{BILLION}/training-{SHUFFLED}-00001-of-00100",
            *(f"{BILLION}/heldout-{SHUFFLED}.heldout-{i:05d}-of-00050" for i in (0, 1)),
        ],
        ["1b_word_vocab.txt", "news.en-00001-of-00100", "test.txt", "valid.txt"],
    ),
}


def put_there(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> DataSet:
    """The archive of a data set, as a user puts it there, with nothing known of it."""
    known, members = SETS[name], IN_ARCHIVE[name][0]
    content = (tarred if name == "lm1b" else zipped)(
        {member: member.encode() for member in members}
    )
    without = tuple(one._replace(digest="", urls=[]) for one in known.remotes)
    bare = known._replace(remotes=without, files=dict.fromkeys(known.files, ""))
    for one in bare.remotes:
        (folder / one.name).write_bytes(content if one.name not in known.files else b"<S> 1\n")
    monkeypatch.setitem(download.SETS, name, bare)
    return bare


@pytest.mark.parametrize("name", IN_ARCHIVE)
def test_a_data_set_ends_up_where_the_scripts_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    bare, files = put_there(tmp_path, monkeypatch, name), IN_ARCHIVE[name][1]
    assert download.main([name, "--out", str(tmp_path)]) == 0
    found = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert found >= set(files)
    assert found <= {*files, "valid.txt", *(one.name for one in bare.remotes)}
    assert download.main([name, "--out", str(tmp_path)]) == 0


def test_a_file_that_is_there_is_not_unpacked_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_there(tmp_path, monkeypatch, "lm1b")
    (tmp_path / "valid.txt").write_text("mine\n")
    assert download.main(["lm1b", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "valid.txt").read_text() == "mine\n"
    assert "heldout" in (tmp_path / "test.txt").read_text()


def test_a_mirror_of_ones_own_is_asked_first(
    tmp_path: Path,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server.content = zipped({"text8": b"a b c"})
    digest = f"sha256:{hashlib.sha256(server.content).hexdigest()}"
    address = f"http://127.0.0.1:{server.server_address[1]}"
    theirs = f"{address}/missing/text8.zip"
    known = SETS["text8"]._replace(remotes=(Remote("text8.zip", [theirs], digest),))
    monkeypatch.setitem(download.SETS, "text8", known)
    assert download.main(["text8", "--out", str(tmp_path), "--mirror", f"{address}/good/"]) == 0
    assert server.asked == [("good", None)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text8"]
    assert download.main(["text8", "--out", str(tmp_path / "other")]) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith(f"text8.zip: cannot be loaded ({theirs}: ")
    assert line.endswith(f"put it ({digest}) into {tmp_path / 'other'} and start again")


def test_the_hubs_parquet_files_give_the_published_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [" \n", " = Title = \n", " \n", " Ünï <unk> text . \n"]
    rows = ["" if line == " \n" else line for line in lines]

    def read(path: Path, *_: str) -> Iterator[tuple[int, str]]:
        return enumerate(
            rows[:2]
            if "00000-of-00002" in path.name
            else rows[2:]
            if "of-00002" in path.name
            else rows
        )

    monkeypatch.setattr(download, "_fetcher", lambda: Path)
    monkeypatch.setattr(download, "parquet_rows", read)
    text = "".join(lines).encode()
    digest = hashlib.sha256(text).hexdigest()
    fallback = partial(download.from_hub, "wikitext-2-v1", {"train": 2, "valid": 1, "test": 1})
    known = {"train": f"sha256:{digest}", "valid": f"sha256:{digest}", "test": "lines:4"}
    texts = {f"{split}.txt": of_text for split, of_text in known.items()}
    wanted = DataSet("", (Remote("x.zip", []),), texts, fallback=partial(fallback, known))
    assert download.download(wanted, tmp_path / "out")
    assert (tmp_path / "out" / "train.txt").read_bytes() == text
    other = partial(fallback, {**known, "test": "lines:5"})
    with pytest.raises(
        DataError, match=r"the hub: .* its test split is not .*x.zip: cannot be loaded"
    ):
        download.download(wanted._replace(fallback=other), tmp_path / "other")
    assert list((tmp_path / "other").iterdir()) == []


def test_without_the_libraries_of_the_hub_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DataError, match="pip install huggingface_hub pyarrow"):
        download.from_hub("wikitext-2-v1", {}, {}, Path())


@pytest.mark.parametrize("name", ["enwik8", "wt103", "ptb"])
def test_what_is_there_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    for file in SETS[name].files:
        (tmp_path / file).write_bytes(b"cut\n")
    assert download.main([name, "--out", str(tmp_path)]) == 2
    assert "is not the file of the data set (" in capsys.readouterr().err
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {b"cut\n"}


def test_every_data_set_has_a_checksum_or_says_why_not() -> None:
    bare = {
        (name, one.name) for name, known in SETS.items() for one in known.remotes if not one.digest
    }
    assert bare == {("lm1b", "1b_word_vocab.txt")}  # none is published
