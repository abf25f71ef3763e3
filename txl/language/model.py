"""A trained model as one object:

import txl
lm = txl.load("runs/mine")
lm.generate("Once upon a time")
"""

import dataclasses
import functools
import inspect
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, get_args, overload

import numpy as np
import torch
from torch import Tensor

from txl.attention_rules import use_attention
from txl.config import Context, Dtype, ModelConfig, UsageError, names_of, require
from txl.data_utils.config import is_tokenised
from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.free_text import decoded, encode_after, encode_text, has_tokens
from txl.data_utils.tokens import Tokenizer
from txl.evaluation.score import score_text
from txl.generation.config import LARGEST_PENALTY
from txl.generation.ending import Ending
from txl.generation.rule import Rule
from txl.inference.cuda_graph import frozen
from txl.inference.frozen import pack_weights
from txl.inference.kept import Begun, beginning
from txl.inference.reader import Reader, context_of_text, reading_context
from txl.language.chat import ChatLayout
from txl.language.kept_memory import KeptMemory, WhoRead, read_text
from txl.language.sources import Contents, Origin, located, read_source
from txl.language.template import Messages
from txl.language.text_generation import TextGenerator
from txl.language.texts import open_corpus, resolved_data
from txl.memory import require_works
from txl.model.autocast import autocast, dtype_for, dtype_on
from txl.model.transformer import TransformerXL
from txl.positions import require_serves
from txl.registry import MEMORIES
from txl.runtime.distributed import device_of
from txl.runtime.log import perplexity
from txl.usage import ModelUse

_LOG = logging.getLogger(__name__)
TOO_SHORT = "has one token, and nothing before it to predict it from; give more text"


@dataclass(frozen=True)
class TextScore:
    """How well a model predicts a text.

    Attributes:
        tokens: its tokens, a line break of a text of words being `<eos>`.
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
        return perplexity(self.total_nats / len(self.nats))


@dataclass(frozen=True)
class LanguageModel:
    """A trained model, which scores, generates, gives hidden states and opens its text.
    `dataclasses.replace(lm, context=...)` looks back further.

    Texts are read as the splits were: words between white space, or WikiText's tokens where
    `is_tokenised`; a line break is `<eos>`, and an unknown word is `<unk>`. Those of a pretrained
    decoder are read as they stand, in its own tokens.

    Attributes:
        context: of the training; of a pretrained decoder, how it is read.
        record: what is known besides, as in a checkpoint's config.json; `data` has the fields of
            `DataConfig` that are known of the text of the training.
        origin: None: it was not read.
        dtype: of the matrix products; of 16 bits: of the weights too, which take no gradient and
            are not written.
    """

    model: TransformerXL
    context: Context
    tokenizer: Tokenizer
    record: dict[str, Any] = field(default_factory=dict)
    origin: Origin | None = None
    dtype: torch.dtype = torch.float32

    @classmethod
    def open(
        cls,
        source: str | Path,
        *,
        vocabulary: str | Path | None = None,
        dataset: str | None = None,
        device: str | torch.device = "auto",
        dtype: str = "float32",
        memory: str | None = None,
        **settings: Any,
    ) -> Self:
        """Read a run folder, one of its checkpoints, a checkpoint of the 2019 code, of NVIDIA's or
        of Hugging Face's TransfoXL, a pretrained decoder in its folder (docs/pretrained.md), or a
        model of the Hugging Face hub by its name (`pip install huggingface_hub`).

        Args:
            vocabulary: the words of a checkpoint of another program, where they are not beside the
                weights.
            dataset: kind of the text of its training, where it does not say so itself.
            device: auto, cpu, cuda, cuda:1 or mps.
            dtype: of the matrix products; bfloat16 or float16: the weights are kept in it, which
                halves memory, see docs/speed.md; auto: bfloat16 on a device that is made for it.
            memory: what it remembers, in place of that of the training: `memory="sinks", n_sink=4`.
            settings: of the memory.
        Raises:
            UsageError: if there is no such thing, it is damaged, or has no vocabulary; if it is in
                float64 and the dtype is another; if there is no such memory, it does not read a
                setting, or it has weights that were not trained.
            TypeError: if no memory has a setting of this name.
        """
        known = get_args(Dtype)
        require(dtype in known, f"dtype {dtype}: no such dtype; there are {', '.join(known)}")
        path = located(source)
        device = device_of(device) if isinstance(device, str) else device
        dtype = dtype_on(device, dtype)
        contents = read_source(
            path, Path(vocabulary) if vocabulary else None, dataset, getattr(torch, dtype)
        )
        if memory is not None or settings:
            _read_with(contents, source, memory, settings)
        contents.model.to(device).eval()
        pack_weights(contents.model)
        return cls(*contents, dtype=dtype_for(contents.model, dtype))

    @property
    def model_config(self) -> ModelConfig:
        """The shape of the model."""
        return self.model.config

    @property
    def is_tokenised(self) -> bool:
        """Running text is split as WikiText is; else at white space only."""
        return is_tokenised(self.record)

    @property
    def folder(self) -> Path:
        """The checkpoint that it was read from."""
        assert self.origin is not None, "made, not read"
        return self.origin.path

    @property
    def run(self) -> Path | None:
        """The run folder that was asked for, or a checkpoint of it; None: it is
        another program's.
        """
        if self.origin is None:
            return None
        return self.origin.run

    def fingerprint(self) -> str:
        """Hex digest of the weights as they were read."""
        assert self.origin is not None, "made, not read"
        return self.origin.fingerprint()

    @property
    def reading(self) -> dict[str, Any]:
        """What of the training its text is read by: `reset`, as in `TrainConfig`, and
        `has_other_words`: the vocabulary is not that of the text, but of the model that the
        training began with.
        """
        train = self.record.get("train", {})
        as_trained = {
            "reset": train.get("reset", "never"),
            "has_other_words": bool(train.get("init_from")),
        }
        return self.record.get("reading", as_trained)

    @property
    def read_with(self) -> dict[str, Any]:
        """For results: the memory in place of that of the training, and its settings; empty: it is
        that of the training.
        """
        if "read_with" in self.record:
            return {"read_with": self.record["read_with"]}
        return {}

    @property
    def known_data(self) -> dict[str, Any]:
        """The fields of `DataConfig` that are known of the text of the training."""
        assumed = self.record.get("converted_from", {}).get("assumed", [])  # by version 0.2
        settings = {}
        for name, value in self.record.get("data", {}).items():
            if name not in assumed:
                settings[name] = value
        return settings

    @contextmanager
    def used_as(self, use: ModelUse) -> Iterator[TransformerXL]:
        """The model with the attention implementation and autocast that `use` asks for."""
        require_works(self.model_config.memory, use, can_change=False)
        if getattr(use, "memory_file", None) is None:  # else it brings the lengths
            self._require_trained_lengths(use)
            context = self.context.overlaid(clamp_len=use.clamp_len)
            require_serves(self.model.layers[0].attn.pos, context, can_change=False)
        use_attention(self.model, use.attn_impl)
        with autocast(
            self.model.device, dtype_for(self.model, dtype_on(self.model.device, use.dtype))
        ):
            yield self.model

    def _require_trained_lengths(self, use: ModelUse) -> None:
        """Raise `UsageError` if the memory does not work with what `use` leaves as in training."""
        memory = self.model_config.memory
        switched_off = {
            "mem_len": "--mem_len 0",
            "same_length": "--no_same_length",
            "clamp_len": "--clamp_len -1",
        }
        for name, off in switched_off.items():
            trained = getattr(self.context, name)
            allowed = MEMORIES[memory].traits.works_with.get(name, (trained,))
            is_left = getattr(use, name, None) in (None, ())
            if is_left and trained not in allowed:
                raise UsageError(
                    f"--memory {memory}: does not work with --{name}, with which the model was"
                    f" trained; give {off}"
                )

    def computing(self) -> torch.autocast:
        """A context in which the model computes in its dtype."""
        return autocast(self.model.device, self.dtype)

    def data_config(self, asked: Mapping[str, Any] = MappingProxyType({})) -> DataConfig:
        """How the text of the training was read, with the fields that are `asked` for in place of
        those. Raises `UsageError` if nobody knows, or the text is not there any more.
        """
        return resolved_data(self.record, self.folder, asked, n_word=len(self.tokenizer))

    def corpus(self, config: DataConfig | None = None) -> Corpus:
        """The text of the training in the model's tokens, or that of `config`. Raises `UsageError`
        if it is not there, or defines another vocabulary.
        """
        return open_corpus(
            self.folder,
            self.tokenizer,
            config or self.data_config(),
            self.record,
            has_other_words=self.reading["has_other_words"],
        )

    def write(self, folder: str | Path, to: str = "txl", **notes: Any) -> None:
        """Write a new folder: a run (`txl`), what transformers loads (`huggingface`), or what the
        2019 code loads (`original`); with a model card. Raises `UsageError` if the other program
        has no such model.

        Args:
            notes: for the card: `licence`, `about`, `evaluations` and `samples` of
                `txl.language.export.Notes`.
        """
        from txl.language.export import (
            Notes,
            write_folder,  # few programs write
        )

        name = str(self.dtype).removeprefix("torch.")
        require(
            self.dtype == torch.float32,
            f"dtype {name}: its weights are rounded; open it in float32 to write it",
        )
        write_folder(self, Path(folder), to, Notes(**notes))

    def encode(self, text: str) -> list[int]:
        """The ids of a text. Raises `UsageError` if it is empty."""
        return encode_text(text, self.tokenizer, name="text", running=self.is_tokenised).ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, in natural spelling."""
        return decoded(ids, self.tokenizer, tokenised=self.is_tokenised)

    def read(
        self,
        text: str,
        memory: KeptMemory | None = None,
        *,
        tokenise: bool | None = None,
        name: str = "text",
    ) -> KeptMemory:
        """Read a text, which begins a line or goes on with what was read before: a memory to keep,
        of which texts are generated and scored. Read in two pieces it is what it is in one. A
        progress bar shows the segments.

        Args:
            memory: what was read before; its context counts, not that of the model.
            tokenise: it is running text, to be split as WikiText is; None: if `is_tokenised`.
            name: of the text, for messages.
        Raises:
            UsageError: if the text is empty; if the memory is of another model.
        """
        running = self.is_tokenised if tokenise is None else tokenise
        ids = encode_text(text, self.tokenizer, name=name, running=running).ids
        if memory is None:
            first, *ids = [*self.tokenizer.begins, *ids]
            begun = beginning(self.model, self._own_context, first)
            who = WhoRead.of(self.model, self.tokenizer, self.dtype)
            memory = KeptMemory(begun, who)
        else:
            self.begun(memory)
        with self.computing():
            return read_text(text, ids, memory, self.model)

    def begun(self, memory: KeptMemory | None) -> Begun | None:
        """What was read before, for the readers of `txl.inference`. Raises `UsageError` if the
        memory is of another model.
        """
        if memory is None:
            return None
        memory.require_of(self.model, self.tokenizer, self.dtype)
        return memory.begun

    def stream(
        self, prompt: str = "", *, memory: KeptMemory | None = None, **settings: Any
    ) -> Iterator[str]:
        """The text that continues the prompt, in pieces, mostly a word with the space before it, as
        they are sampled.

        Args:
            prompt: empty: begin a line, or go on with the memory.
            memory: what was read before the prompt, in whose context is read on.
            length: tokens to sample, by default 100.
            lines: stop after so many lines that are not blank; 0: any number.
            stop: string or strings before which the text ends.
            seed: for a reproducible result; None: PyTorch's global generator.
            allow_unknown: `<unk>` may be sampled.
            no_repeat_ngram_size: so many tokens in a row occur only once, prompt included; 0: as
                often as they come.
            raw: tokens with spaces between them instead of natural spelling.
            num_beams: above 1: the most likely text that beam search finds, in one piece, instead
                of a sample.
            length_penalty: see `txl.generation.sampling.beam_search`.
            temperature, top_k, top_p, min_p, typical_p, repetition_penalty: see
                `txl.generation.rule.Rule`; not given: as the generation_config.json of a pretrained
                decoder says, if it samples.
        Raises:
            UsageError: if a setting is impossible.
        """
        pieces = self._generator(memory, **settings).stream(self._prompt_ids(prompt))
        while True:
            with self.computing():  # not while others compute, between two pieces
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece

    @overload
    def generate(
        self, prompt: str = "", *, memory: KeptMemory | None = None, **settings: Any
    ) -> str: ...

    @overload
    def generate(
        self,
        prompt: Sequence[str],
        *,
        memory: KeptMemory | None = None,
        batch_size: int = 16,
        **settings: Any,
    ) -> list[str]: ...

    def generate(
        self,
        prompt: str | Sequence[str] = "",
        *,
        memory: KeptMemory | None = None,
        batch_size: int = 16,
        **settings: Any,
    ) -> str | list[str]:
        """The text that continues the prompt; arguments as `stream`.

        For a list of prompts, a list of texts, generated side by side, `batch_size` at a time. Text
        i is what prompt i gives alone with the i-th seed after `seed`; a list of the same prompt
        gives samples.
        """
        if isinstance(prompt, str):
            return "".join(self.stream(prompt, memory=memory, **settings))
        with self.computing():
            return list(
                self._generator(memory, **settings).texts(
                    [*map(self._prompt_ids, prompt)], batch_size=batch_size
                )
            )

    def text_and_ids(
        self, prompt: str = "", *, memory: KeptMemory | None = None, **settings: Any
    ) -> tuple[str, list[int]]:
        """The text that continues the prompt, and the ids of its tokens, one that ended it too;
        arguments as `stream`, without beams.
        """
        with self.computing():
            return self._generator(memory, **settings).text_and_ids(self._prompt_ids(prompt))

    def chat(self, messages: Messages, **settings: Any) -> str:
        """What the model answers to messages, which the chat template of its tokenizer lays out;
        settings as `stream`, by default 500 tokens.

        Args:
            messages: each with a `role` (system, user, assistant or tool) and its `content`, a text
                or a list of parts `{"type": "text", "text": ...}`.
            settings: others than those of `stream` are arguments of the template, such as
                `enable_thinking=False` and `tools=[...]`.
        Raises:
            UsageError: if the tokenizer has no template, the template refuses the messages or does
                not read an argument.
        """
        of_template = {name: value for name, value in settings.items() if name not in _GENERATION}
        ids = ChatLayout(self.tokenizer, of_template).ids_of(messages)
        for name in of_template:
            del settings[name]
        generator = self._generator(**{"length": 500, **settings})
        with self.computing():
            return "".join(dataclasses.replace(generator, is_chat=True).stream(ids))

    def sampling_rule(self, given: Mapping[str, Any]) -> Rule:
        """How the next token is sampled: as given, else as the model's own generation_config.json
        says, which a notice tells once. Raises `UsageError` if a setting is impossible.
        """
        own = {}
        for name, value in self.tokenizer.sampling.items():
            if name not in given:
                own[name] = value
        if own:
            _say_once(", ".join(f"{name} {value}" for name, value in own.items()))
        return Rule(**own | dict(given))

    def _prompt_ids(self, prompt: str) -> list[int]:
        if self.tokenizer.prompt(prompt):
            return self.encode(prompt)
        return []

    def _generator(
        self,
        memory: KeptMemory | None = None,
        *,
        length: int = 100,
        lines: int = 0,
        stop: str | Sequence[str] = (),
        seed: int | None = None,
        allow_unknown: bool = False,
        no_repeat_ngram_size: int = 0,
        raw: bool = False,
        num_beams: int = 1,
        length_penalty: float = 1.0,
        **sampling: Any,
    ) -> TextGenerator:
        unknown = ", ".join(sampling.keys() - set(names_of(Rule)))
        require(not unknown, f"{unknown}: no such setting; there are {', '.join(_GENERATION)}")
        require(num_beams >= 1, f"num_beams {num_beams}: must be at least 1")
        require(
            num_beams > 1 or length_penalty == 1,
            f"length_penalty {length_penalty}: only with num_beams above 1",
        )
        require(
            abs(length_penalty) <= LARGEST_PENALTY,
            f"length_penalty {length_penalty}: must be at least {-LARGEST_PENALTY} and at most"
            f" {LARGEST_PENALTY}",
        )
        require(
            num_beams == 1 or not sampling,
            f"num_beams {num_beams}: draws nothing; leave out {', '.join(sampling)}",
        )
        rule = Rule()
        if num_beams == 1:
            rule = self.sampling_rule(sampling)
        return TextGenerator(
            model=self.model,
            context=self.context,
            tokenizer=self.tokenizer,
            tokenised=self.is_tokenised and not raw,
            ending=Ending(
                length=length, lines=lines, stop=(stop,) if isinstance(stop, str) else stop
            ),
            rule=rule,
            seed=seed,
            allow_unknown=allow_unknown,
            no_repeat_ngram_size=no_repeat_ngram_size,
            num_beams=num_beams,
            length_penalty=length_penalty,
            begun=self.begun(memory),
        )

    def score(self, text: str, context: str = "", *, memory: KeptMemory | None = None) -> TextScore:
        """The nats of each token of a text, which begins a line or continues `context`, before which
        the text of `memory` stands. The first token of all is not scored where the tokenizer puts
        none before a text, see docs/pretrained.md. Raises `UsageError` if there is nothing to
        score.
        """
        if not has_tokens(context, self.tokenizer):
            context = ""
        running = self.is_tokenised
        of_context, tokens = encode_after(
            context, text, self.tokenizer, name="text", running=running
        )
        begun = self.begun(memory)
        if begun is None:
            before = [*self.tokenizer.begins, *of_context]
        else:
            before = [*begun.ids, *of_context]
        ids = [*before, *tokens.ids]
        first = max(1, len(before))
        require(len(ids) > first, f"text: {TOO_SHORT}")
        with self.computing():
            if begun is None:
                reading = self.reading_context(len(ids))
                nll_N = score_text(self.model, np.array(ids), reading, first=first)
            else:
                nll_N = score_text(
                    self.model,
                    np.array(ids),
                    begun.context_for(len(ids) - len(begun.ids)),
                    first=first,
                    predictor=frozen(self.model, begun.memory),
                    n_again=len(begun.again),
                )
        return TextScore([self.tokenizer.words[i] for i in ids[first:]], nll_N.tolist())

    def loglikelihood(
        self, context: str, continuation: str, *, memory: KeptMemory | None = None
    ) -> float:
        """The log-likelihood of `continuation` after `context`, in nats; `memory` as in `score`."""
        return -self.score(continuation, context, memory=memory).total_nats

    @torch.no_grad()
    def hidden_states(self, text: str) -> Tensor:
        """The last layer's output for each token of a text that begins a line, (N, d_model), on the
        CPU.
        """
        begins = self.tokenizer.begins
        ids_1N = torch.tensor([[*begins, *self.encode(text)]])
        with self.computing():
            hidden_1ND = Reader(self.model, self.reading_context(ids_1N.shape[1]), 1).read(ids_1N)
        return hidden_1ND[0, len(begins) :].clone().cpu()

    @property
    def _own_context(self) -> Context:
        """How a text of any length is read by itself."""
        return reading_context(self.model_config, self.context)

    def reading_context(self, n_token: int) -> Context:
        """How a text of so many tokens is read by itself, see `txl.inference.reader`."""
        return context_of_text(self.model_config, self.context, n_token)


@functools.cache
def _say_once(own: str) -> None:
    _LOG.warning("%s: as the model's generation_config.json says; other values win over them", own)


def _read_with(
    contents: Contents, source: str | Path, memory: str | None, settings: Mapping[str, Any]
) -> None:
    """Exchange the memory of what was read, and note it in the record, unless it is that of the
    training. Raises `UsageError` if the memory has weights that were not trained.
    """
    model = contents.model
    trained = model.config
    added = model.remember(memory, **settings)
    name = model.config.memory
    require(
        not added,
        f"--memory {name}: has weights of its own, with which {source} was not trained; train them"
        f" first: train.py --init_from {source} --memory {name}",
    )
    if model.config != trained:
        contents.record["read_with"] = {"memory": name, **settings}


_GENERATION = [
    *list(inspect.signature(LanguageModel._generator).parameters)[1:-1],
    *names_of(Rule),
]
"""The settings of `LanguageModel.stream`."""
load = LanguageModel.open
