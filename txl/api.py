"""A trained model with its vocabulary as one object:

import txl
lm = txl.load("runs/mine")
lm.generate("Once upon a time")
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from txl.commands.pretrained import read_pretrained
from txl.config import Context, UsageError, require
from txl.data_utils.free_text import encode_text
from txl.data_utils.running import RunningVocab
from txl.data_utils.vocabulary import EOS, UNK, Vocab
from txl.evaluation.reading import within
from txl.evaluation.score import score_text
from txl.generation.sampling import generate
from txl.model.transformer import TransformerXL
from txl.runtime.distributed import device_of


@dataclass(frozen=True)
class TextScore:
    """How well a model predicts a text.

    Attributes:
        tokens: its tokens, a line break being `<eos>`.
        nats: minus the log-likelihood of each.
    """

    tokens: list[str]
    nats: list[float]

    @property
    def total_nats(self) -> float:
        """Minus the log-likelihood of the text."""
        return math.fsum(self.nats)

    @property
    def perplexity(self) -> float:
        """Per token; infinity beyond a float."""
        try:
            return math.exp(self.total_nats / len(self.nats))
        except OverflowError:
            return math.inf


@dataclass(frozen=True)
class LanguageModel:
    """A model, how far it looks back, and its words. `dataclasses.replace(lm, context=...)` looks back further.

    Texts are read as the splits were: words between white space, or WikiText's tokens where `is_tokenised`; a line
    break is `<eos>`, and an unknown word is `<unk>`.
    """

    model: TransformerXL
    context: Context
    vocab: Vocab
    is_tokenised: bool = True
    """Running text is split as WikiText is; else at white space only."""

    def stream(
        self,
        prompt: str = "",
        *,
        length: int = 100,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        allow_unknown: bool = False,
    ) -> Iterator[str]:
        """The words, or other tokens, that continue the prompt, each as it is drawn; `<eos>` is a line break.

        Args:
            length: words to draw. The others: see `txl.generation.sampling.generate`.
            allow_unknown: `<unk>` may be drawn.
        """
        ids = self._ids(prompt) if prompt.strip() else [self.vocab.eos_id]
        banned = [] if allow_unknown or UNK not in self.vocab else [self.vocab.index[UNK]]
        context = within(self.context.overlaid(ext_len=0), len(ids) + length)
        rule = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
        drawn = generate(self.model, ids, context, length=length, banned=banned, **rule)
        if isinstance(self.vocab, RunningVocab):
            yield from self.vocab.pieces(drawn)
        else:
            yield from map(self.vocab.words.__getitem__, drawn)

    def generate(self, prompt: str = "", **settings: Any) -> str:
        """The continuation as text; arguments as `stream`."""
        if isinstance(self.vocab, RunningVocab):
            return "".join(self.stream(prompt, **settings))
        return " ".join(self.stream(prompt, **settings)).replace(f" {EOS}", "\n").replace(EOS, "\n")

    def score(self, text: str, context: str = "") -> TextScore:
        """The nats of each token of a text, which begins a line or continues `context`.

        Raises:
            UsageError: if the text is empty.
        """
        before = [self.vocab.eos_id, *(self._ids(context) if context.strip() else [])]
        ids = self._ids(text)
        nll_N = score_text(self.model, np.array(before + ids), self._within(len(before + ids)), first=len(before))
        return TextScore([self.vocab.words[i] for i in ids], nll_N.tolist())

    def loglikelihood(self, context: str, continuation: str) -> float:
        """The log-likelihood of `continuation` after `context`, in nats."""
        return -self.score(continuation, context).total_nats

    @torch.no_grad()
    def hidden_states(self, text: str) -> Tensor:
        """The last layer's output for each token of a text that begins a line, (N, d_model), on the CPU."""
        ids_1N = torch.tensor([[self.vocab.eos_id, *self._ids(text)]])
        context, memory, parts = self._within(ids_1N.shape[1]), self.model.fresh_memory(1), []
        for segment_1T in ids_1N.split(context.tgt_len, dim=1):
            hidden_1TD, memory = self.model(segment_1T, memory, context)
            parts.append(hidden_1TD[0].cpu())
        return torch.cat(parts)[1:]

    def _ids(self, text: str) -> list[int]:
        return encode_text(text, self.vocab, name="text", running=self.is_tokenised).ids

    def _within(self, n_token: int) -> Context:
        return within(self.context.overlaid(ext_len=0), n_token)


def load(source: str | Path, *, device: str = "auto", vocabulary: str | Path | None = None) -> LanguageModel:
    """A trained model: a run folder, one of its checkpoints, a checkpoint of the 2019 code, of NVIDIA's or of Hugging
    Face's TransfoXL, or the name of a model on the Hugging Face hub (`pip install huggingface_hub`).

    Args:
        device: auto, cpu, cuda, cuda:1 or mps.
        vocabulary: the words of a checkpoint of another program, where they are not beside the weights.
    Raises:
        UsageError: if there is no such thing, it is damaged, or has no vocabulary.
    """
    path = Path(source)
    if not path.exists():
        require(str(source).count("/") == 1, f"{source}: no such file or folder, and no name on the hub (owner/name)")
        path = _downloaded(str(source))
    found = read_pretrained(path, Path(vocabulary) if vocabulary else None, vocabulary_by="vocabulary=")
    return LanguageModel(found.model.to(device_of(device)).eval(), found.context, found.vocab, found.dataset != "text")


def _downloaded(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download  # pyright: ignore[reportMissingImports] (an extra)
    except ImportError:
        raise UsageError(f"{name}: no such folder; for models of the hub, pip install huggingface_hub") from None
    patterns = ["*.json", "*.safetensors", "*.bin", "vocab.*"]
    return Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=["corpus.bin", "*.h5"]))
