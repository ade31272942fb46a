"""What chat templates see, which of several is used, and going on with a message."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import numpy as np
import pytest

from specdec_native.chat import ChatTemplate, encode_chat
from specdec_native.errors import TemplateError
from specdec_native.text import Tokenizer
from support.toy_vocabulary import CHATML, gpt2_metadata, llama_metadata

USER = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_metadata(gpt2_metadata(add_bos_token=False))


def test_messages_are_plain_data() -> None:
    """As `transformers`: no methods of strangers' objects, no None, all names of reasoning."""

    class Role(str, enum.Enum):
        USER = "user"

    @dataclasses.dataclass
    class Block:
        text: str

    class Model:
        def model_dump(self) -> dict[str, Any]:
            return {"n": np.float32(0.5)}

    message = {
        "role": Role.USER,
        "content": [Block("x"), Model(), np.int64(3), object(), (1, True)],
        "thinking": "hm",
        "name": None,
    }
    text = ChatTemplate("{{ messages[0] }}").render([message])
    assert text == str(
        {
            "thinking": "hm",
            "role": "user",
            "content": [{"text": "x"}, {"n": 0.5}, 3, "<object>", (1, True)],
            "reasoning_content": "hm",
        }
    )


def test_special_tokens_are_variables() -> None:
    tokenizer = Tokenizer.from_metadata(llama_metadata(padding_token_id=5))
    source = "{{ bos_token }}{{ eos_token }}{{ unk_token }}{{ pad_token }}{{ sep_token }}"
    assert ChatTemplate.from_tokenizer(tokenizer, source).render(USER) == "<s></s><unk><0x02>"


def with_templates(**sources: str | None) -> Tokenizer:
    metadata = gpt2_metadata(add_bos_token=False, chat_template=sources.pop("default", None))
    named = {f"tokenizer.chat_template.{name}": text for name, text in sources.items()}
    return Tokenizer.from_metadata({**metadata, **named, "tokenizer.chat_templates": [*sources]})


def test_several_templates() -> None:
    """The choice is that of `transformers`."""
    tokenizer = with_templates(default="{{ 1 }}", tool_use="{{ 2 }}", other="{{ 3 }}")

    def text(source: str | None = None, with_tools: bool = False) -> str:
        template = ChatTemplate.from_tokenizer(tokenizer, source, with_tools=with_tools)
        return template.render(USER)

    assert [text(), text(with_tools=True), text("other"), text("other", True)] == [*"1233"]
    assert text("{{ 4 }}", with_tools=True) == "4"
    assert tokenizer.chat_template == "{{ 1 }}"
    with pytest.raises(TemplateError, match=r"'chatml' is no template.* 'default', 'other'"):
        text("chatml")


def test_several_templates_without_a_default() -> None:
    tokenizer = with_templates(tool_use="{{ 2 }}", other="{{ 3 }}")
    assert tokenizer.chat_template is None
    assert ChatTemplate.from_tokenizer(tokenizer, with_tools=True).render(USER) == "2"
    with pytest.raises(TemplateError, match=r"none is the default.* 'other', 'tool_use'"):
        ChatTemplate.from_tokenizer(tokenizer)


@pytest.mark.parametrize("source", [CHATML, CHATML.replace("'content']", "'content'] | trim")])
def test_going_on_with_the_last_message(tokenizer: Tokenizer, source: str) -> None:
    template = ChatTemplate.from_tokenizer(tokenizer, source)
    messages = [*USER, {"role": "assistant", "content": "x <|im_end|>y "}]
    text = template.render(messages, continue_final_message=True)
    end = "x <|im_end|>y" if "trim" in source else "x <|im_end|>y "
    assert text == f"<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n{end}"
    ids = encode_chat(tokenizer, template, messages, continue_final_message=True)
    assert tokenizer.decode(ids, control=True) == text
    assert sum(tokenizer.is_special(one) for one in ids) == 3
    assert messages[1]["content"] == "x <|im_end|>y "  # as the caller gave it


@pytest.mark.parametrize("messages", [[], [{"role": "user", "content": [{"type": "image"}]}]])
def test_nothing_to_go_on_with(messages: Any) -> None:
    with pytest.raises(TemplateError, match="continue_final_message needs"):
        ChatTemplate(CHATML).render(messages, continue_final_message=True)
    with pytest.raises(TemplateError, match="leaves out the last message"):
        ChatTemplate("{{ 1 }}").render(USER, continue_final_message=True)
