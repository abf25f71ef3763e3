"""The chat template of a tokenizer, a program in Jinja2 that lays out messages as one text."""

import datetime
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from txl.data_utils.errors import DataError
from txl.language.processes import Apart

Messages = Sequence[Mapping[str, Any]]
"""Each with a `role` (system, user, assistant, tool) and its `content`, a text or a list of parts
`{"type": "text", "text": ...}`; an assistant's with `tool_calls` may have none."""
_SECONDS = 10
"""Of processor time for a chat."""
_CHARACTERS = 1 << 14
_TIMES = 64
"""Characters of a text beyond those, for one of the messages."""
_OUR_NAMES = {"messages", "add_generation_prompt", "bos_token", "eos_token"}
_MARK = "\ue000\ue001\ue000"
"""Stands at the end of a message that is not finished; characters that no text has."""


class Layout:
    """A template in this process. Raises `ValueError` if it is none.

    Args:
        names: what the template calls tokens, such as `bos_token`, and their names.
    """

    def __init__(self, source: str, names: Mapping[str, str]) -> None:
        from jinja2.meta import find_undeclared_variables
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _generation()],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _now
        self._template = environment.from_string(source)
        self._names = dict(names)
        asked = find_undeclared_variables(environment.parse(source))
        self._reads = sorted(asked - environment.globals.keys() - _OUR_NAMES)

    def text_of(
        self,
        messages: Messages,
        is_finished: bool = True,
        arguments: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """The text of messages up to where an answer begins. Raises `ValueError` if the template
        refuses them, multiplies them, or does not read an argument.

        Args:
            arguments: of the template, such as `tools` and `enable_thinking`.
            is_finished: False: the text ends within the last message, which the answer continues.
        """
        for name in arguments:
            if name not in self._reads:
                raise ValueError(
                    f"does not read {name}, only {', '.join(self._reads) or 'messages'}"
                )
        laid_out = [dict(message) for message in messages]
        if not is_finished:
            laid_out[-1]["content"] += f"{_MARK} "
        pieces = self._template.generate(
            messages=laid_out,
            add_generation_prompt=is_finished,
            **{"tools": None, "documents": None, **self._names, **arguments},
        )
        said = [value for message in messages for value in message.values()]
        text = _bounded(pieces, sum(len(str(value)) for value in [*said, dict(arguments)]))
        if is_finished:
            return text
        return _before_mark(text)


def _bounded(pieces: Iterable[str], n_said: int) -> str:
    """The text of a template's pieces. Raises `ValueError` if it is far longer than the messages.

    Args:
        n_said: characters of them.
    """
    most = _CHARACTERS + _TIMES * n_said
    text = ""
    for piece in pieces:
        text += piece
        if len(text) > most:
            raise ValueError(f"makes {len(text)} characters of {n_said}")
    return text


class ChatTemplate:
    """A template in a process of its own, bounded in memory and time.

    Args:
        names: see `Layout`.
    """

    def __init__(self, source: str, names: Mapping[str, str]) -> None:
        _require_library()
        self._apart = Apart(functools.partial(Layout, source, dict(names)), "chat template")

    def text_of(
        self,
        messages: Messages,
        *,
        is_finished: bool = True,
        arguments: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """The text of messages up to where an answer begins, see `Layout`. Raises `DataError` if a
        message or an argument is damaged, or the template cannot lay them out."""
        if isinstance(messages, str | Mapping) or not isinstance(messages, Iterable):
            raise DataError("messages of a chat are a list; give one of roles and contents")
        said = [_with_text(message) for message in messages]
        if not said:
            raise DataError("a chat has no messages; give one at least")
        try:
            json.dumps([said, dict(arguments)])
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(
                f"chat template: {error}; give messages and arguments as JSON"
            ) from None
        try:
            return self._apart.call("text_of", said, is_finished, dict(arguments), seconds=_SECONDS)
        except DataError:
            raise
        except ValueError as error:
            raise DataError(f"chat template: {error}; give other messages or a prompt") from None


def _with_text(message: Any) -> dict[str, Any]:
    """A message whose content is one text. Raises `DataError` if it is damaged."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise DataError("a message of a chat has no role; give its role and content")
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        content = ""
    if isinstance(content, list | tuple):
        content = "".join(map(_text_of_part, content))
    if not isinstance(content, str):
        raise DataError("a message of a chat has no content; give it as text")
    return {**message, "content": content}


def _text_of_part(part: Any) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text":
        text = part.get("text")
        if isinstance(text, str):
            return text
    raise DataError(
        'a content of a chat has a part that is no text; give {"type": "text", "text": ...}'
    )


def _before_mark(text: str) -> str:
    """The text up to the end of the last message, without white space at its end if the template
    takes that off messages."""
    before, mark, after = text.rpartition(_MARK)
    if not mark:
        raise ValueError("leaves out the last message")
    if after.startswith(" "):
        return before
    return before.rstrip()


def _require_library() -> None:
    try:
        import jinja2  # noqa: F401
    except ImportError:
        raise DataError("a chat template needs Jinja2: pip install jinja2") from None


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False) -> str:
    """As transformers has it: no escapes of HTML."""
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)


def _refuse(message: object) -> None:
    raise ValueError(str(message))


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _generation() -> type:
    """The tag `generation`, which marks what the model says, and changes nothing here."""
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 (as Jinja2 has it)

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Generation
