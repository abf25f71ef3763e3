"""A chat with a model whose tokenizer has a template for it."""

import dataclasses
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from txl.config import require
from txl.data_utils.tokens import Tokenizer
from txl.language.template import ChatTemplate, Messages
from txl.language.text_generation import Session, TextGenerator


class ChatLayout:
    """Messages as the ids that a model reads. Raises `UsageError` if its tokenizer has no template
    for them.

    Args:
        arguments: of the template, such as `tools` and `enable_thinking`.
    """

    def __init__(
        self, tokenizer: Tokenizer, arguments: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        template = tokenizer.chat_template
        require(template is not None, "the model's tokenizer has no chat template; give a prompt")
        assert template is not None
        names = {name: tokenizer.words[i] for name, i in tokenizer.named.items()}
        self._tokenizer = tokenizer
        self._arguments = dict(arguments)
        self._template = ChatTemplate(template, names)
        self.source = template
        """The template."""

    def text_of(self, messages: Messages, *, is_finished: bool = True) -> str:
        """The text of messages up to where an answer begins. Raises `UsageError` if the template
        refuses them.

        Args:
            is_finished: False: the text ends within the last message, which the answer continues.
        """
        return self._template.text_of(messages, is_finished=is_finished, arguments=self._arguments)

    def ids_of(self, messages: Messages) -> list[int]:
        """The ids of messages up to where an answer begins. Raises `UsageError` if the template
        refuses them.
        """
        return self._tokenizer.encode(self.text_of(messages)).ids.tolist()


class Chat:
    """A conversation. Of what has been said the model reads what it has not read before: all of it
    again only where the template lays out earlier turns in another way than they were read.

    Args:
        system: what the model is told first; empty: what the template says.
        arguments: see `ChatLayout`.
    """

    def __init__(
        self,
        how: TextGenerator,
        system: str = "",
        arguments: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._how = dataclasses.replace(how, is_chat=True)
        self._layout = ChatLayout(how.tokenizer, arguments)
        self._session = Session(self._how)
        self._read: list[int] = []
        self._is_open = False  # there is an answer that has not ended
        self._n_asked = 0  # of what was read, up to where the answer begins
        self.messages: list[dict[str, str]] = []
        if system:
            self.messages.append({"role": "system", "content": system})

    def answer(self, text: str) -> Iterator[str]:
        """What the model says to a message, in pieces."""
        self.messages.append({"role": "user", "content": text})
        ids = self._layout.ids_of(self.messages)
        n_read = len(self._read)
        if ids[:n_read] != self._read:
            self._session = Session(self._how)
            n_read = 0
        self._session.read(0, ids[n_read:])
        self._read = ids
        self._n_asked = len(ids)
        self.messages.append({"role": "assistant", "content": ""})
        self._is_open = True
        yield from self.go_on()

    def go_on(self) -> Iterator[str]:
        """More of an answer that has not ended; nothing if it has."""
        if not self._is_open:
            return
        for _, piece in self._session.write():
            yield piece
        self._read += self._session.written[0]
        self._is_open = self._read[-1] not in self._how.stop_ids
        said = self._read[self._n_asked :]
        if not self._is_open:
            said = said[:-1]
        # all of it: a character may have begun before the answer was cut
        self.messages[-1]["content"] = self._how.tokenizer.decoded(said)
