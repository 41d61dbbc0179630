"""`glmforge serve` and `glmforge chat` as a user runs them: processes, pipes, Ctrl-C."""

import http.client
import json
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from e2e_project import Project

pytest.importorskip("starlette", reason="needs glmforge[serve]")

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "serve"))

from served import write_base


def ask(url: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    """(status, parsed body) of one request."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    headers = {"Content-Type": "application/json"}
    connection.request("POST" if body else "GET", path, json.dumps(body), headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, json.loads(text) if text.startswith("{") else text


def test_a_finished_run_is_served_beside_its_base(project: Project) -> None:
    """Page and endpoint; Ctrl-C ends it with status 0."""
    base = write_base(project.directory / "base")
    project.settings["model"] = {"model_name_or_path": str(base)}
    project.settings["method"] = "lora"  # type: ignore[assignment]
    project.settings["training"] |= {"max_steps": 2, "learning_rate": 0.1}
    project.write()
    done = project.run("glmforge", "train", "c.yaml")
    assert done.returncode == 0, done.stderr
    server = project.start("glmforge", "serve", "run", "--port", "0", "--max-new-tokens", "8")
    try:
        assert server.stdout is not None
        page_line, api_line = server.stdout.readline(), server.stdout.readline()
        assert page_line.startswith("chat page http://127.0.0.1:"), server.communicate()[1]
        assert api_line.rstrip().endswith("/v1 (models: base, run)")
        url = page_line.split()[-1]
        _, listed = ask(url, "/v1/models")
        assert [entry["id"] for entry in listed["data"]] == ["base", "run"]
        question = {"messages": [{"role": "user", "content": "question 3"}], "temperature": 0}
        answers = [ask(url, "/v1/chat/completions", {**question, "model": name})
                   for name in ("base", "run")]  # fmt: skip
        assert [status for status, _ in answers] == [200, 200]
        texts = [answer["choices"][0]["message"]["content"] for _, answer in answers]
        assert texts[0] != texts[1]
        assert "Base and tuned, side by side" in ask(url, "/")[1]
        server.send_signal(signal.SIGINT)
        _, err = server.communicate(timeout=60)
    finally:
        server.kill()
    assert server.returncode == 0, err
    assert "Traceback" not in err
    assert "run: " in err

    said = project.run("glmforge", "serve", "run", "--stress", "--batch-size", "2", "--json")
    assert said.returncode == 0, said.stderr
    report = json.loads(said.stdout)
    assert (report["length"], report["batch"], report["held"]) == (64, 2, True)
    assert report["peak_gib"] > 0


def test_what_cannot_be_served_is_said_in_a_sentence(project: Project) -> None:
    """Before weights are read where that is possible."""
    done = project.run("glmforge", "serve", "nothing")
    assert (done.returncode, "nothing" in done.stderr) == (1, True)
    done = project.run("glmforge", "serve", str(project.directory), "--adapter", "=x")
    assert (done.returncode, "write DIR or NAME=DIR" in done.stderr) == (2, True)
    base = write_base(project.directory / "base")
    done = project.run("glmforge", "serve", str(base), "--host", "256.1.1.1")
    assert (done.returncode, "cannot listen there" in done.stderr) == (1, True)
    assert "Traceback" not in done.stderr


def read_until(process: subprocess.Popen[str], wanted: int, seconds: float = 60) -> str:
    """At least so many characters of standard output."""
    assert process.stdout is not None
    text, end = "", time.monotonic() + seconds
    while len(text) < wanted and time.monotonic() < end:
        if select.select([process.stdout], [], [], 1)[0]:
            text += process.stdout.read(1)
    return text


def test_ctrl_c_in_a_chat_ends_the_answer_and_the_next_line_is_answered(project: Project) -> None:
    """Lines come from a pipe; the process goes on after the signal and ends with the input."""
    base = write_base(project.directory / "base", 8192)
    chat = subprocess.Popen(
        [sys.executable, "-u", "-m", "glmforge", "chat", str(base), "--max-new-tokens", "6000"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=project.directory, bufsize=1,
    )  # fmt: skip
    try:
        assert chat.stdin is not None
        chat.stdin.write("你好\n")
        assert len(read_until(chat, 5)) >= 5
        chat.send_signal(signal.SIGINT)
        chat.stdin.write("/clear\n/exit\n")
        _, err = chat.communicate(timeout=60)
    finally:
        chat.kill()
    assert chat.returncode == 0, err
    assert "[stopped]" in err
