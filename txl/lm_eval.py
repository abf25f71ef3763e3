"""A model for lm-evaluation-harness, whose command knows no models but its own:

python -m txl.lm_eval --model txl --model_args path=runs/mine --tasks wikitext

An extra: pip install -e ".[lm-eval]" in a clone of the project.
"""

import dataclasses
import hashlib
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

from txl.programs.launch import launch

# before PyTorch is imported; the harness knows the models of the module that is imported
if __name__ == "__main__":
    launch("lm_eval")

import torch
from torch import Tensor

from txl.config import UsageError, hints_of, require
from txl.data_utils.free_text import has_tokens
from txl.evaluation.score import score_text
from txl.generation.rule import Rule
from txl.inference.reader import Reader
from txl.inference.words import WordProbabilities
from txl.language.chat import ChatLayout
from txl.language.model import LanguageModel
from txl.language.template import Messages
from txl.registry import MEMORIES, names_of_settings
from txl.runtime.records import fits
from txl.usage import MemoryUse

try:
    # its own models, which it looks for only while it knows none
    import lm_eval.models  # noqa: F401  # pyright: ignore[reportMissingImports] (an extra)
    from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]
    from lm_eval.api.registry import register_model  # pyright: ignore[reportMissingImports]
except ImportError:
    raise ImportError(
        'txl.lm_eval needs lm-evaluation-harness: pip install -e ".[lm-eval]" in a clone of the'
        " project"
    ) from None

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_OF_THE_HARNESS = ("batch_size", "max_batch_size", "trust_remote_code")
_LENGTHS_OF_MEMORIES = ("compressed_len", "lookup_len")
_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


@register_model("txl")
class TransformerXLForHarness(LM):
    """What the harness asks of a model, with the memory carried over a whole document.

    Args:
        path: what `txl.load` takes.
        vocabulary: see `txl.load`.
        tgt_len, mem_len, clamp_len: how far it looks back; those of the training if not given.
        memory: see `txl.load`.
        device: as the harness names it.
        dtype: see `txl.load`, where auto is float32.
        others: settings of the memory, among them compressed_len and lookup_len; and those that the
            harness passes to any model, which have no effect here.
    Raises:
        UsageError: if a setting is unknown or impossible.
    """

    def __init__(
        self,
        path: str = "",
        *,
        vocabulary: str | None = None,
        tgt_len: int | None = None,
        mem_len: int | None = None,
        clamp_len: int | None = None,
        memory: str | None = None,
        device: str | None = None,
        dtype: str = "auto",
        **others: Any,
    ) -> None:
        super().__init__()
        lengths: dict[str, Any] = {"tgt_len": tgt_len, "mem_len": mem_len, "clamp_len": clamp_len}
        settings = {}
        unknown = []
        for name, value in others.items():
            if name in _LENGTHS_OF_MEMORIES:
                lengths[name] = value
            elif name in names_of_settings((MEMORIES,)):
                settings[name] = value
            elif name not in _OF_THE_HARNESS:
                unknown.append(f"{name}={value}")
        names = "path, vocabulary, tgt_len, mem_len, clamp_len, dtype, memory and its settings"
        require(not unknown, f"{', '.join(unknown)}: no such setting; there are {names}")
        require(path != "", "path is missing; give --model_args path=RUN")
        for name, value in lengths.items():
            require(
                type(value) in (int, type(None)), f"{name}={value}: not a whole number; give one"
            )
        hints = hints_of(MemoryUse, settings)
        for name, value in settings.items():
            hint = hints[name]
            kind = getattr(hint, "__name__", str(hint))
            require(fits(value, hint), f"{name}={value}: not of type {kind}; give another")
        if device is None or (device.startswith("cuda") and not torch.cuda.is_available()):
            device = "auto"  # the harness asks for cuda:0 when nobody named a device
        if dtype == "auto":
            dtype = "float32"
        lm = LanguageModel.open(
            path, device=device, vocabulary=vocabulary, dtype=dtype, memory=memory, **settings
        )
        context = lm.context.overlaid(ext_len=0, **lengths)
        self.lm: LanguageModel = dataclasses.replace(lm, context=context)

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """For each (context, continuation): nats, negative, and whether each token is the most
        likely one.
        """
        return self._answered("loglikelihood", requests, self._continued)

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """For each document: its log-likelihood in nats, read from its first word on with one
        memory.
        """
        return self._answered("loglikelihood_rolling", requests, self._read)

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """For each (context, settings): words up to the first of the strings in `until`, or
        `max_gen_toks` of them.
        """
        return self._answered("generate_until", requests, self._generated)

    def apply_chat_template(
        self, chat_history: Messages, add_generation_prompt: bool = True
    ) -> str:
        """A chat as the tokenizer's template lays it out. Where that refuses it, without what the
        model is told first, as of the harness's own models.

        Args:
            add_generation_prompt: False: the text ends within the last message.
        """
        layout = self._layout
        try:
            return layout.text_of(chat_history, is_finished=add_generation_prompt)
        except UsageError as error:
            rest = [message for message in chat_history if message["role"] != "system"]
            if len(rest) in (0, len(chat_history)):
                raise
            _LOG.warning("%s: read without the message of the system", error)
            return layout.text_of(rest, is_finished=add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template that `--apply_chat_template` takes; of several a tokenizer keeps one here."""
        require(
            isinstance(chat_template, bool) or chat_template == "default",
            f"--apply_chat_template {chat_template}: the tokenizer's default template alone is read;"
            " leave the name out",
        )
        return self._layout.source if chat_template else None

    @property
    def tokenizer_name(self) -> str:
        """Names the prompts that the harness keeps: a digest of what they depend on."""
        tokenizer = self.lm.tokenizer
        names = (tokenizer.words[i] for i in tokenizer.named.values())
        digest = hashlib.sha256("\n".join((*names, self._layout.source)).encode())
        return f"txl-{digest.hexdigest()[:16]}"

    @cached_property
    def _layout(self) -> ChatLayout:
        template = self.lm.tokenizer.chat_template
        why = "the model's tokenizer has no chat template; leave the flag out"
        require(template is not None, f"--apply_chat_template: {why}")
        return ChatLayout(self.lm.tokenizer)

    def _answered(self, kind: str, requests: Sequence[Any], answer: Callable[..., T]) -> list[T]:
        found = []
        for request in requests:
            found.append(answer(*request.args))
            self.cache_hook.add_partial(kind, request.args, found[-1])
        return found

    def _continued(self, context: str, continuation: str) -> tuple[float, bool]:
        before, ids = self._pair(context, continuation)
        if not ids:  # such as a space for a model of words
            return 0.0, True
        logprob = 0.0
        is_greedy = True
        with self.lm.computing():
            for logprob_NV, target_N in self._predictions(before + ids, first=len(before)):
                logprob += float(logprob_NV.gather(1, target_N[:, None]).double().sum())
                is_greedy &= bool((logprob_NV.argmax(1) == target_N).all())
        return logprob, is_greedy

    def _pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """The ids that are read first, at least one, and those of the continuation; of a tokenizer
        that encodes both in one as the harness's own models have them.
        """
        tokenizer = self.lm.tokenizer
        if not tokenizer.encodes_in_one:
            return [*tokenizer.begins, *self._ids(context)], self._ids(continuation)
        if not context:
            ids = [tokenizer.bos_id, *self._ids(continuation)]
            if ids[:1] == ids[1:2]:
                del ids[0]
            return ids[:1], ids[1:]
        stem = context.rstrip()
        whole = self._with_beginning(context + continuation)
        before = self._with_beginning(stem)  # not as it begins the whole: so the harness has it
        return before or [tokenizer.bos_id], whole[len(before) :]

    def _with_beginning(self, text: str) -> list[int]:
        """The ids of a text after those that the tokenizer puts before it, unless it names them
        itself.
        """
        tokenizer = self.lm.tokenizer
        if text.startswith(self._bos()):
            return self._ids(text)
        return [*tokenizer.begins, *self._ids(text)]

    def _bos(self) -> str:
        """The name of the token before a text."""
        return self.lm.tokenizer.decoded([self.lm.tokenizer.bos_id])

    def _read(self, text: str) -> float:
        if not has_tokens(text, self.lm.tokenizer):
            return 0.0
        if not self.lm.tokenizer.encodes_in_one:
            return -self.lm.score(text).total_nats
        # the harness's own models are asked for what the tokenizer puts before the text, too
        ids = [self.lm.tokenizer.bos_id, *self._with_beginning(text)]
        with self.lm.computing():
            nll_N = score_text(self.lm.model, ids, self.lm.reading_context(len(ids)))
        return -float(nll_N.double().sum())

    def _generated(self, context: str, settings: dict[str, Any]) -> str:
        if (settings.get("num_beams") or 1) > 1:
            names = ("num_beams", "length_penalty")
        else:
            names = ("top_k", "top_p", "min_p", "typical_p", "repetition_penalty")
        rule: dict[str, Any] = {}
        if "top_k" in names:  # the harness's settings alone count
            rule = dataclasses.asdict(Rule())
        for name in (*names, "no_repeat_ngram_size"):
            if settings.get(name) is not None:
                rule[name] = settings[name]
        if "num_beams" not in names:
            rule["temperature"] = (
                float(settings.get("temperature") or 0.0)
                if settings.get("do_sample", True)
                else 0.0
            )
        length = next((int(settings[name]) for name in _LENGTHS if settings.get(name)), 256)
        until = settings.get("until") or []
        if isinstance(until, str):
            until = [until]
        tokenizer = self.lm.tokenizer
        named = tokenizer.named
        if tokenizer.chat_template is not None and "eos_token" in named:
            until = [*until, tokenizer.decoded([named["eos_token"]])]  # the end of a turn
        if tokenizer.encodes_in_one and tokenizer.begins:
            context = context.removeprefix(self._bos())  # which is put before it
        stop = [each for each in until if each]
        how = {"length": length, "stop": stop, **rule}
        if "num_beams" in names or not tokenizer.encodes_in_one:
            text = self.lm.generate(context, **how)
        else:
            text, ids = self.lm.text_and_ids(context, **how)
            whole = tokenizer.decoded(ids)
            if len(ids) == length and not any(each in whole for each in stop):
                text += _unfinished(text, whole)
        return tokenizer.without_special(text)

    @torch.no_grad()
    def _predictions(self, ids: list[int], *, first: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Log-probabilities (N, V) of the tokens from `first` on, and the tokens (N,), a segment's
        length at a time.
        """
        model = self.lm.model
        context = self.lm.reading_context(len(ids))
        words = WordProbabilities.of(model)
        hidden_1SD = Reader(model, context, 1).read(torch.tensor([ids[:-1]]))
        hiddens = hidden_1SD[0, first - 1 :].split(context.tgt_len)
        targets = torch.tensor(ids[first:]).split(context.tgt_len)
        for hidden_ND, target_N in zip(hiddens, targets, strict=True):
            yield words.all(hidden_ND).cpu(), target_N

    def _ids(self, text: str) -> list[int]:
        if has_tokens(text, self.lm.tokenizer):
            return self.lm.encode(text)
        return []


def _unfinished(text: str, whole: str) -> str:
    """What the library decodes besides at the end of a text that is cut inside a character."""
    for begin in (text, text.removeprefix(" ")):  # which some tokenizers leave out
        if whole.startswith(begin):
            return whole[len(begin) :]
    return ""


def main(argv: Sequence[str]) -> None:
    """The harness's own command, which knows the model `txl` then."""
    from lm_eval.__main__ import cli_evaluate  # pyright: ignore[reportMissingImports]

    # no line for every text with unknown words
    logging.getLogger("txl.data_utils").setLevel(logging.ERROR)
    sys.argv[1:] = argv  # which it reads, and does not know --plugin
    cli_evaluate()
