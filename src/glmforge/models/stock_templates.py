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
{%- set called = message['tool_calls'] or message['function_call'] -%}
{%- if called and (message['role'] != 'assistant' or not CALLS) -%}
{{ raise_exception('NAME: a message of role ' ~ message['role'] ~ ' cannot have tool_calls') }}
{%- endif -%}
{%- if message['content'] is not string
    and (message['content'] or not (called or message['tools'])) -%}
{{ raise_exception('NAME: the content of a message must be a text') }}
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

_CALLS = r"""
{%- set calls = message['tool_calls'] -%}
{%- if not calls and message['function_call'] -%}
{%- set calls = [message['function_call']] -%}
{%- endif -%}
"""

# A call in `call`: its name and the line break, its arguments in `arguments`.
_CALL = r"""
{%- set call = call['function'] if call['function'] is defined else call -%}
{%- if call['name'] is not string -%}
{{ raise_exception('NAME: a call in tool_calls has no tool name') }}
{%- endif -%}
{%- set arguments = call['arguments'] if call['arguments'] is defined else call['parameters'] -%}
{%- set arguments = arguments if arguments is defined else {} -%}
{{- '<|assistant|>' -}}
{{- call['name'] ~ '\n' -}}
"""

_PYTHON_CALL = r"""
{%- if arguments is not mapping -%}
{{ raise_exception('NAME writes arguments one by one: give them as an object, not as a text') }}
{%- endif -%}
{%- set written = namespace(values=[]) -%}
{%- for name, value in arguments.items() -%}
{%- set written.values = written.values + [name ~ '=' ~ '%r'|format(value)] -%}
{%- endfor -%}
{{- 'BREAK```python\ntool_call(' ~ written.values|join(', ') ~ ')\n```' -}}
"""

_JSON_CALL = r"{{- arguments if arguments is string else arguments | tojson -}}"

_CHATGLM3 = r"""[gMASK]<sop>
{%- for message in found.messages -%}
CALLS_OF
{%- if message['content'] or not calls -%}
ROLE_NAME
METADATA
{{- 'BREAK' ~ (message['content'] or '') -}}
{%- endif -%}
{%- for call in calls or [] -%}
THE_CALL
PYTHON_CALL
{%- endfor -%}
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
CALLS_OF
{%- if message['content'] or not (message['tools'] or calls) -%}
ROLE_NAME
METADATA
{{- message['content'] or '' -}}
{%- endif -%}
{%- for call in calls or [] -%}
THE_CALL
JSON_CALL
{%- endfor -%}
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
        "CALLS_OF": _CALLS,
        "THE_CALL": _CALL,
        "PYTHON_CALL": _PYTHON_CALL,
        "JSON_CALL": _JSON_CALL,
        "CALLS": str(name != "ChatGLM2"),
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
