"""Chat templates (Jinja) with which stock transformers writes the dialogues of our tokenizers.

Owns `chat_template`. Each says what the family's ``_chat_parts`` says in Python. The fast
tokenizer (stock_tokenizer.py) encodes ChatGLM2's and ChatGLM3's parts apart at `PART_BREAK`, a
character that Unicode reserves for use inside programs and that no text should hold.
"""

import json
from typing import Any

from glmforge.errors import ModelError

PART_BREAK = "\ufdd0"
"""Stands in templates where two texts meet that are encoded apart; it has no id of its own."""

_RULES = r"""
{%- for message in messages -%}
{%- if message['role'] not in ROLES -%}
{{ raise_exception('NAME does not know the role ' ~ message['role']) }}
{%- endif -%}
{%- endfor -%}
"""

_ROUNDS = r"""
{%- if tools %}{{ raise_exception('ChatGLM2 knows no tools') }}{% endif -%}
[gMASK]<sop>
{%- for message in messages -%}
{%- if message['role'] != ('assistant' if loop.index0 % 2 else 'user') -%}
{{ raise_exception('ChatGLM2 needs rounds of one question and one answer') }}
{%- endif -%}
{%- if message['role'] == 'user' -%}
{{ '[Round ' ~ (loop.index0 // 2 + 1) ~ ']\n\n问：' ~ message['content'] ~ '\n\n答：' }}
{%- elif loop.last -%}
{{ 'BREAK' ~ message['content'] ~ '</s>' }}
{%- else -%}
{{ message['content'] ~ '\n\n' }}
{%- endif -%}
{%- endfor -%}
"""

_TOOLS = r"""
{%- set found = namespace(messages=messages) -%}
{%- if tools -%}
{%- if messages[0]['role'] == 'system' -%}
{%- set found.messages = [dict(messages[0], tools=tools)] + messages[1:] -%}
{%- else -%}
{%- set found.messages = [dict(role='system', content=PROMPT, tools=tools)] + messages -%}
{%- endif -%}
{%- endif -%}
"""

_ROLE_NAME = "{{- '<|' ~ ('observation' if message['role'] in ('tool', 'function') else "
_ROLE_NAME += "message['role']) ~ '|>' -}}"

_METADATA = r"{{- (message['metadata'] or '') ~ '\n' -}}"

_CHATGLM3 = r"""[gMASK]<sop>
{%- for message in found.messages -%}
ROLE_NAME
METADATA
{{- 'BREAK' ~ (message['content'] or '') -}}
{%- if message['tools'] and message['role'] == 'system' -%}
{%- set bare = namespace(tools=[]) -%}
{%- for tool in message['tools'] -%}
{%- set bare.tools = bare.tools + [tool['function'] if tool['function'] is defined else tool] -%}
{%- endfor -%}
{{- '\n' ~ bare.tools | tojson(indent=4) -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<|assistant|>{% endif -%}
"""

_GLM4 = r"""[gMASK]<sop>
{%- for message in found.messages -%}
{%- if message['tools'] -%}
{%- set wrapped = namespace(tools=[]) -%}
{%- for tool in message['tools'] -%}
{%- if tool['function'] is not defined and tool['name'] is defined -%}
{%- set wrapped.tools = wrapped.tools + [dict(type='function', function=tool)] -%}
{%- elif tool['function'] is defined -%}
{%- set wrapped.tools = wrapped.tools + [dict(type='function', function=tool['function'])] -%}
{%- else -%}
{%- set wrapped.tools = wrapped.tools + [tool] -%}
{%- endif -%}
{%- endfor -%}
{{- write_tools([dict(role='system', content='', tools=wrapped.tools)])[12:] -}}
{%- endif -%}
{%- if message['content'] or not message['tools'] -%}
ROLE_NAME
METADATA
{{- message['content'] or '' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<|assistant|>{% endif -%}
"""

_NO_TOOLS = "{{ raise_exception('this template does not say how the model is told its tools') }}"

_MACRO = "{%- macro write_tools(messages) -%}{%- set add_generation_prompt = false -%}"


def chat_template(tokenizer: Any) -> str:
    """Return the template of a tokenizer of ours, without needing anything of ours to run.

    Raises:
        ModelError: the family has none.
    """
    if tokenizer.family == "chatglm2":
        return _written(_RULES + _ROUNDS, "ChatGLM2", ("user", "assistant"))
    roles = ("system", "user", "assistant", "observation", "tool", "function")
    if tokenizer.family == "chatglm3":
        from glmforge.models.glm.tokenization_sentencepiece import TOOLS_PROMPT

        return _written(_RULES + _TOOLS + _CHATGLM3, "ChatGLM3", roles, TOOLS_PROMPT)
    if tokenizer.family == "glm4":
        macro = f"{_MACRO}{tokenizer.tools_template or _NO_TOOLS}{{%- endmacro -%}}"
        return macro + _written(_RULES + _TOOLS + _GLM4, "GLM-4", roles)
    raise ModelError(f"{tokenizer.family}: this family has no chat template for transformers")


def _written(text: str, name: str, roles: tuple[str, ...], prompt: str = "") -> str:
    values = {
        "ROLE_NAME": _ROLE_NAME,
        "METADATA": _METADATA,
        "ROLES": str(roles),
        "NAME": name,
        "PROMPT": json.dumps(prompt),
        "BREAK": PART_BREAK,
    }
    for key, value in values.items():
        text = text.replace(key, value)
    return text.strip("\n")
