"""What `glmforge serve` refuses: by name, with the numbers, in OpenAI's shape of an error."""

import json

import pytest

pytest.importorskip("starlette", reason="needs glmforge[serve]")

from served import POSITIONS, scripted
from serving import HELLO, running

from glmforge.data import generation_prompt
from glmforge.errors import LaunchError
from glmforge.serve.listening import listen


@pytest.fixture(scope="module")
def client(small_models):
    with running(small_models, max_length=POSITIONS) as found:
        yield found


def test_too_long_is_a_400_with_the_numbers(client, small_models):
    long = [{"role": "user", "content": "好" * 200}]
    tokens = len(generation_prompt(long, small_models.tokenizer))
    status, answer = client.complete(messages=long)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert f"the messages are {tokens} tokens" in answer["error"]["message"]
    assert f"together are {POSITIONS} tokens" in answer["error"]["message"]
    status, answer = client.complete(max_tokens=POSITIONS)
    assert status == 400
    assert f"and {POSITIONS} tokens are asked for" in answer["error"]["message"]
    prompt = len(generation_prompt(HELLO, small_models.tokenizer))
    status, answer = client.complete(max_tokens=POSITIONS - prompt)
    assert (status, answer["usage"]["total_tokens"]) == (200, POSITIONS)


@pytest.mark.parametrize(
    ("fields", "status", "param", "text"),
    [
        ({"model": "gpt-4"}, 404, "model", "no model 'gpt-4' here; there are base, first, v1.2"),
        ({"messages": []}, 400, "messages", "at least 1"),
        ({"messages": "hi"}, 400, "messages", "list"),
        ({"messages": [{"role": "cat", "content": ""}]}, 400, "messages", "role 'cat'"),
        ({"messages": [{"role": "user", "content": 1}]}, 400, "messages", "not text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400,
         "messages.0.content", "reads text only"),
        ({"temperature": 3}, 400, "temperature", "less than or equal to 2 (it is 3)"),
        ({"top_p": -1}, 400, "top_p", "greater than or equal to 0"),
        ({"max_tokens": 0}, 400, "max_tokens", "greater than or equal to 1"),
        ({"max_completion_tokens": 5}, 400, "max_tokens", "differ"),
        ({"n": 2}, 400, "n", "1"),
        ({"stop": ["a"] * 5}, 400, "stop", "at most 4"),
        ({"stop": ""}, 400, "stop", "empty"),
        ({"presence_penalty": 0.5}, 400, "presence_penalty", "0"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format.type", "text"),
        ({"tool_choice": "required"}, 400, "tool_choice", "auto"),
        ({"top_kk": 3}, 400, "top_kk", "does not know it"),
        ({"tools": [1]}, 400, "tools.0", "dictionary"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_by_name(client, fields, status, param, text):
    found, answer = client.complete(**fields)
    assert found == status, answer
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["param"] == param
    assert text in answer["error"]["message"]


def test_neutral_values_and_bookkeeping_are_taken(client):
    """What clients send by default."""
    status, _ = client.complete(
        presence_penalty=0.0, frequency_penalty=0, logit_bias={}, logprobs=False, n=1, stop=None,
        response_format={"type": "text"}, user="u", store=False, metadata={"a": "b"}, tools=[],
        tool_choice="auto", parallel_tool_calls=True, max_completion_tokens=12,
    )  # fmt: skip
    assert status == 200


def test_a_body_that_is_no_request_is_refused(client):
    path = "/v1/chat/completions"
    assert client.ask("POST", path, b"{no json")[0] == 400
    assert client.ask("POST", path, b"[]")[0] == 400
    assert client.ask("POST", path, b"[" * 100_000)[0] == 400
    assert client.ask("POST", path, b"{}", {"Content-Type": "text/plain"})[0] == 415
    assert client.ask("POST", path, b" " * (17 << 20))[0] == 413
    status, _, text = client.ask("GET", path)
    assert (status, "error" in json.loads(text)) == (405, True)
    assert json.loads(client.ask("GET", "/nothing")[2])["error"]["message"].startswith(
        "GET /nothing"
    )


def test_a_page_elsewhere_cannot_reach_a_private_server(small_models):
    """Its name may be made to lead here: the Host header tells, unless the server is public."""
    with running(scripted(), loopback_only=True) as client:
        assert client.ask("GET", "/health", headers={"Host": "evil.example"})[0] == 400
        assert client.ask("GET", "/health", headers={"Host": "localhost:1"})[0] == 200
        assert client.ask("GET", "/health", headers={"Host": "[::1]:1"})[0] == 200
    with running(scripted(), loopback_only=False) as client:
        assert client.ask("GET", "/health", headers={"Host": "machine.example"})[0] == 200


def test_a_taken_port_is_told_in_words():
    with listen("127.0.0.1", 0) as found:
        port = found.getsockname()[1]
        with pytest.raises(LaunchError, match=f"127.0.0.1:{port}: cannot listen there"):
            listen("127.0.0.1", port)
