"""Chat templates: programs of a file, which lay out messages as transformers does, and do nothing else."""

import json
from typing import Any

import pytest

from txl.data_utils.errors import DataError
from txl.language import processes, template
from txl.language.template import ChatTemplate, Layout

SMOLLM = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_3 = """{{- bos_token }}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- for message in messages %}
    {%- if not message.role in ['user', 'assistant', 'system'] %}
        {{- raise_exception('no role ' + message.role) }}
    {%- endif %}
    {%- if message.role == 'assistant' %}
        {% generation %}
        {{- message.content | trim + eos_token }}
        {% endgeneration %}
        {%- continue %}
    {%- endif %}
    {{- '<' + message.role + '>' + message.content | trim }}
    {{- {'a': 'é<'} | tojson }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<assistant>' }}
{%- endif %}
"""
NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
TALK = [{"role": "user", "content": " Hi "}, {"role": "assistant", "content": "Ho"}]


def test_messages_are_laid_out_as_the_template_says() -> None:
    said = ChatTemplate(SMOLLM, NAMES).text_of(TALK[:1])
    assert said == (
        "<|im_start|>system\nYou are a helpful AI assistant.<|im_end|>\n"
        "<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n"
    )
    said = ChatTemplate(LLAMA_3, NAMES).text_of([*TALK, {"role": "user", "content": "x"}])
    assert said == '<s><user>Hi{"a": "é<"}Ho</s>\n<user>x{"a": "é<"}<assistant>'


REFUSED = [
    ("{{ ''.__class__.__mro__ }}", "access to attribute"),
    ("{{ cycler.__init__.__globals__.os.system('true') }}", "access to attribute"),
    ("{{ messages.append(1) }}", "not safely callable|unsafe|append"),
    ("{% include 'x' %}", "no loader"),
    ("{% for i in range(10 ** 9) %}{% endfor %}", "Range too big"),
    ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
    ("{% for", "unexpected|expected"),
    ("{{ 'a' * 10 ** 7 }}", "makes 10000000 characters"),
    ("{% for i in range(50000) %}{{ i }}{% endfor %}", r"makes 17\d{3} characters"),
    ("{{ 'a' * 20_000 }}", "makes 20000 characters"),
    ("{{ x.y }}", "undefined"),
]


@pytest.mark.parametrize(("source", "said"), REFUSED)
def test_what_a_template_must_not_do_is_one_line(source: str, said: str) -> None:
    with pytest.raises(DataError, match=said) as refused:
        ChatTemplate(source, NAMES).text_of(TALK)
    assert str(refused.value).startswith("chat template: ")
    assert "\n" not in str(refused.value)


def test_a_template_is_bounded_in_time_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "_SECONDS", 1)
    monkeypatch.setattr(processes, "MEMORY", 1 << 28)
    loops = "{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3
    for source in (loops, "{{ 'a' * 10 ** 9 }}"):
        with pytest.raises(DataError, match=r"^chat template: "):
            ChatTemplate(source, NAMES).text_of(TALK)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        None,
        "hi",
        ["hi"],
        {"role": "user", "content": "a"},
        [{"role": "user"}],
        [{"role": 1, "content": "a"}],
        [{"role": "user", "content": [{"type": "image", "url": "a"}]}],
        [{"role": "user", "content": ["a"]}],
        [{"role": "assistant", "content": None}],
    ],
)
def test_messages_that_are_none_are_refused(messages: Any) -> None:
    with pytest.raises(DataError, match=r"messages|message|content of a chat"):
        ChatTemplate(SMOLLM, NAMES).text_of(messages)


@pytest.mark.parametrize(
    ("source", "end"), [(SMOLLM, "<|im_start|>assistant\n Ho "), (LLAMA_3, '"é<"}Ho')]
)
def test_an_answer_that_is_begun_goes_on(source: str, end: str) -> None:
    """White space at its end is the template's to keep."""
    begun = [*TALK[:1], {"role": "assistant", "content": " Ho "}]
    said = ChatTemplate(source, NAMES).text_of(begun, is_finished=False)
    assert said.endswith(end)


def test_a_call_of_a_tool_needs_no_content() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}
    source = (
        "{% for m in messages %}{{ m.content }}{{ (m.tool_calls or [{}])[0].name }}{% endfor %}"
    )
    said = ChatTemplate(source, NAMES).text_of([TALK[0], call])
    assert said == " Hi add"


def test_messages_stay_as_they_are() -> None:
    before = json.dumps(TALK)
    Layout("{% set _ = messages[0].update({'a': 1}) if false %}{{ 1 }}", NAMES).text_of(TALK)
    assert json.dumps(TALK) == before
