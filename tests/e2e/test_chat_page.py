"""The page of `glmforge serve`, driven in a real browser against a running server."""

import json
import queue
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs glmforge[serve]")

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "serve"))

from served import write_adapter, write_base
from serving import running
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from glmforge.serve.opening import find_paths, open_models
from glmforge.ui.chat_page import chat_page

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
POSITIONS = 640
NASTY = "<img src=x onerror='window.hit=1'></script>"
VISIT = """
<script>
const seen = {};
const texts = side => [...side.querySelectorAll(".message")].map(n =>
  [n.className, n.querySelector(".text").textContent]);
const look = name => { seen[name] = {
  sides: [...document.querySelectorAll(".side")].map(texts),
  headings: [...document.querySelectorAll(".side h2")].map(n =>
    n.querySelector("select") ? n.querySelector("select").value : n.textContent),
  title: [...document.querySelectorAll("h1 span")].filter(n => n.offsetParent)[0].textContent,
  hint: at("input").placeholder, sendable: !at("send").hidden, input: at("input").value,
  images: document.images.length, hit: window.hit || 0,
  wide: document.documentElement.scrollWidth > innerWidth,
  paper: getComputedStyle(document.body).backgroundColor,
  beside: new Set([...document.querySelectorAll(".side")].map(n =>
    Math.round(n.getBoundingClientRect().top))).size === 1,
}; };
const key = more => at("input").dispatchEvent(new KeyboardEvent("keydown",
  {key: "Enter", bubbles: true, cancelable: true, ...more}));
const settled = () => new Promise(done => {
  const poll = () => running ? setTimeout(poll, 20) : done();
  setTimeout(poll, 20);
});
(async () => {
  if (root.lang === "zh") at("language").click();
  at("longest").value = "8";
  look("first");
  at("input").value = NASTY; key({isComposing: true}); key({shiftKey: true}); look("composing");
  key({}); await settled(); look("asked");
  at("input").value = "again"; at("send").click(); await settled(); look("twice");
  at("input").value = "x".repeat(900); at("send").click(); await settled(); look("long");
  at("input").value = "third"; at("send").click(); await settled(); look("after");
  at("language").click(); look("chinese");
  root.dataset.theme = "light"; look("light"); at("theme").click(); look("dark");
  const select = document.querySelector(".side select");
  if (select) { select.value = "v1.2"; select.dispatchEvent(new Event("change")); }
  look("switched");
  at("clear").click(); look("cleared");
  fetch("seen", {method: "POST", body: JSON.stringify(seen)});
})();
</script></body>""".replace("NASTY", json.dumps(NASTY).replace("</", "<\\/"))


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"needs a browser: none of {', '.join(BROWSERS)} is on the PATH")
    return found


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Any:
    top = tmp_path_factory.mktemp("page")
    base = write_base(top / "base", POSITIONS)
    adapters = [write_adapter(base, top / name, n) for n, name in enumerate(["first", "v1.2"], 1)]
    return open_models(find_paths(base, [(None, path) for path in adapters]))


@pytest.fixture(scope="module", params=[1280, 500])
def seen(
    request: pytest.FixtureRequest,
    browser: str,
    models: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """What a visitor sees, step by step, on a desk and on a phone."""
    page = chat_page(models.names).replace("</body>", VISIT)
    told: queue.Queue[dict[str, Any]] = queue.Queue()

    async def take(sent: Request) -> Response:
        told.put(await sent.json())
        return Response()

    profile = tmp_path_factory.mktemp("profile")
    routes = [Route("/seen", take, methods=["POST"])]
    with running(models, max_length=POSITIONS, page=page, routes=routes) as client:
        process = subprocess.Popen(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
             f"--window-size={request.param},800", "--remote-debugging-port=0",
             f"http://127.0.0.1:{client.port}/"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            found = told.get(timeout=120)
        finally:
            process.terminate()
            process.wait(30)
        question = [{"role": "user", "content": NASTY}]
        found["alone"] = [
            client.complete(model=name, max_tokens=8, messages=question)[1]
            for name in ("base", "first")
        ]
    return found


def test_one_input_is_answered_by_both_sides_side_by_side(seen: dict[str, Any]) -> None:
    """Each as the endpoint answers alone."""
    assert seen["first"]["headings"] == ["base", "first"]
    assert seen["first"]["beside"]
    alone = [answer["choices"][0]["message"]["content"] for answer in seen["alone"]]
    for side, answer in zip(seen["asked"]["sides"], alone, strict=True):
        assert side == [["message user", NASTY], ["message assistant", answer or "(empty)"]]
    assert [len(side) for side in seen["twice"]["sides"]] == [4, 4]
    assert seen["asked"]["input"] == ""
    assert seen["asked"]["sendable"]


def test_enter_of_an_input_method_sends_nothing(seen: dict[str, Any]) -> None:
    assert seen["composing"]["sides"] == [[], []]
    assert seen["composing"]["input"] == NASTY


def test_an_error_is_shown_and_forgotten(seen: dict[str, Any]) -> None:
    for side in seen["long"]["sides"]:
        kind, text = side[-1]
        assert kind == "message error"
        assert f"together are {POSITIONS} tokens" in text
    for side in seen["after"]["sides"]:
        assert side[-1][0] == "message assistant", side[-1]


def test_texts_stay_texts(seen: dict[str, Any]) -> None:
    looks = [look for name, look in seen.items() if name != "alone"]
    assert {look["images"] for look in looks} == {0}
    assert {look["hit"] for look in looks} == {0}


def test_both_languages_both_lights_and_every_width(seen: dict[str, Any]) -> None:
    assert seen["first"]["title"] == "Base and tuned, side by side"
    assert seen["chinese"]["title"] == "基座与微调，并排对话"
    assert seen["chinese"]["headings"][0] == "基座"
    assert "回车" in seen["chinese"]["hint"]
    assert seen["light"]["paper"] != seen["dark"]["paper"]
    assert [name for name, look in seen.items() if name != "alone" and look["wide"]] == []


def test_another_adapter_begins_its_side_anew(seen: dict[str, Any]) -> None:
    assert seen["switched"]["headings"][1] == "v1.2"
    assert [len(side) for side in seen["switched"]["sides"]] == [len(seen["dark"]["sides"][0]), 0]
    assert seen["cleared"]["sides"] == [[], []]
