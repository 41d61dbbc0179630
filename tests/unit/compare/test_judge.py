"""A judge behind an endpoint: both orders, ties where they disagree, nothing asked twice."""

import json
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from glmforge.compare import judge as judging
from glmforge.compare.judge import Judge, judge_of, judge_pairs
from glmforge.compare.prompts import Prompt
from glmforge.data import Message
from glmforge.errors import GlmForgeError


class Stub:
    """An OpenAI-compatible endpoint on loopback whose answers a test decides."""

    def __init__(self):
        self.requests = []
        self.decide = lambda first, second: "C"
        self.statuses = []
        self.reply = b""
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                stub.requests.append((self.path, self.headers.get("Authorization"), body))
                status = stub.statuses.pop(0) if stub.statuses else 200
                text = body["messages"][1]["content"]
                first, second = re.findall(r"<answer [AB]>\n(.*?)\n</answer", text, re.DOTALL)
                said = f"I think so. [[{stub.decide(first, second)}]]"
                reply = {"choices": [{"message": {"role": "assistant", "content": said}}]}
                data = json.dumps(reply if status == 200 else {"error": "no"}).encode()
                data = stub.reply or data
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def stub(monkeypatch):
    monkeypatch.setattr(judging.time, "sleep", lambda seconds: None)
    made = Stub()
    yield made
    made.close()


PROMPTS = [
    Prompt(id=f"p{n}", messages=(Message(role="user", content=f"q{n}"),), source="", reference="R")
    for n in range(3)
]


def test_a_preference_counts_only_when_both_orders_agree(stub, tmp_path):
    """Longer wins whatever the place; where both are as long, the judge likes the first."""
    stub.decide = lambda a, b: "A" if len(a) >= len(b) else "B"
    outcomes = judge_pairs(
        Judge(base_url=stub.url, model="m", key="k"),
        PROMPTS,
        ["long answer", "x", "same1"],
        ["short", "longer", "same2"],
        tmp_path / "j.jsonl",
    )
    assert outcomes == ["base", "tuned", "tie"]
    assert len(stub.requests) == 6
    path, key, body = stub.requests[0]
    assert (path, key) == ("/v1/chat/completions", "Bearer k")
    assert (body["model"], body["temperature"]) == ("m", 0)
    assert "<reference>\nR\n" in body["messages"][1]["content"]


def test_judgments_are_kept_and_equal_answers_cost_nothing(stub, tmp_path):
    judge = Judge(base_url=stub.url, model="m")
    path = tmp_path / "j.jsonl"
    stub.decide = lambda a, b: "A" if a == "good" else "B"
    arguments = (PROMPTS, ["bad", "same", "good"], ["good", "same ", "bad"], path)
    assert judge_pairs(judge, *arguments) == ["tuned", "tie", "base"]
    asked = len(stub.requests)
    assert asked == 4
    path.write_text(path.read_text(encoding="utf-8") + '{"key": "torn', encoding="utf-8")
    assert judge_pairs(judge, *arguments) == ["tuned", "tie", "base"]
    assert len(stub.requests) == asked
    assert "Bearer" not in path.read_text(encoding="utf-8")


def test_a_busy_judge_is_asked_again_and_a_refusing_one_is_named(stub, tmp_path):
    judge = Judge(base_url=stub.url, model="m")
    stub.statuses = [429, 503]
    assert judge.prefers("q", "a", "b", None) == "C"
    assert len(stub.requests) == 3
    stub.statuses = [401]
    with pytest.raises(GlmForgeError, match=r"status 401.*check --judge-url"):
        judge.prefers("q", "a", "b", None)
    assert len(stub.requests) == 4


def test_a_judge_without_a_verdict_is_named(stub):
    stub.decide = lambda a, b: "X"
    with pytest.raises(GlmForgeError, match=r"no \[\[A\]\]"):
        Judge(base_url=stub.url, model="m").prefers("q", "a", "b", None)


def test_nobody_there_is_told(stub):
    free = socket.socket()
    free.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    free.close()
    with pytest.raises(GlmForgeError, match=r"failed \(.*refused.*the same command goes on"):
        Judge(base_url=url, model="m").prefers("q", "a", "b", None)


def test_a_page_that_is_no_endpoint_is_told(stub):
    stub.reply = b"<html>"
    with pytest.raises(GlmForgeError, match="does not answer as an OpenAI endpoint does"):
        Judge(base_url=stub.url, model="m").prefers("q", "a", "b", None)


def test_the_key_comes_from_the_variable_that_is_named():
    values = {"MY_KEY": "secret"}
    assert judge_of("http://h/v1", "m", "MY_KEY", values.get).key == "secret"
    assert judge_of("http://h/v1", "m", None, values.get).key is None
    with pytest.raises(GlmForgeError, match="OTHER: this variable is not set"):
        judge_of("http://h/v1", "m", "OTHER", values.get)
    with pytest.raises(GlmForgeError, match="give a URL"):
        judge_of("h/v1", "m", None, values.get)
