"""The page of `glmforge compare`, driven in a real browser: on a phone and on a desk."""

import html
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "ui"))

from reports import NASTY, make_report

from glmforge.ui.compare_page import compare_page

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
VISIT = """
<pre id="result"></pre><script>
const seen = {};
const visible = node => node.offsetParent !== null;
const look = name => { seen[name] = {
  place: at("place").textContent, meta: document.querySelector("#card .meta")?.textContent || "",
  texts: [...document.querySelectorAll("#card .column .text")].map(n => n.textContent),
  added: [...document.querySelectorAll("#card ins")].map(n => n.textContent),
  removed: [...document.querySelectorAll("#card del")].map(n => n.textContent),
  labels: [...document.querySelectorAll("h2 span")].filter(visible).map(n => n.textContent),
  badges: [...document.querySelectorAll("#card .badge.bad")].map(n => n.textContent),
  images: document.images.length, hit: window.hit || 0,
  wide: document.documentElement.scrollWidth > innerWidth,
  paper: getComputedStyle(document.body).backgroundColor,
}; };
const press = key => document.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
const pick = (id, value) => { at(id).value = value; at(id).dispatchEvent(new Event("change")); };
const find = text => { at("search").value = text; at("search").dispatchEvent(new Event("input")); };
if (root.lang === "zh") at("language").click();
look("first");
press("ArrowRight"); look("right");
press("k"); press("k"); look("round");
find("第三"); look("found"); find("nowhere at all"); look("none"); find("");
pick("kind", "seen"); look("trained"); pick("kind", "area:facts"); look("area");
pick("kind", "all");
pick("flag", "judged-worse"); look("flagged"); pick("flag", "");
pick("way", "sample-1"); look("drawn"); pick("kind", "general"); look("general");
pick("kind", "all"); pick("way", "greedy");
at("search").dispatchEvent(new KeyboardEvent("keydown", {key: "j", bubbles: true})); look("typing");
at("language").click(); look("chinese"); at("language").click();
document.querySelector(".findings a[href='#p=p4']").click();
setTimeout(() => {
  look("linked");
  root.dataset.theme = "light"; look("light"); at("theme").click(); look("dark");
  at("result").textContent = JSON.stringify(seen);
}, 200);
</script></body>"""


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"needs a browser: none of {', '.join(BROWSERS)} is on the PATH")
    return found


@pytest.fixture(scope="module", params=[1280, 500])
def seen(
    request: pytest.FixtureRequest, browser: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What a visitor sees, step by step, on a desk and on a phone."""
    page = tmp_path_factory.mktemp("page") / "driven.html"
    text = compare_page(make_report())
    page.write_text(text.replace("</body>", VISIT), encoding="utf-8")
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000",
         f"--window-size={request.param},800", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    result = done.stdout.split('<pre id="result">')[1].split("</pre>")[0]
    return json.loads(html.unescape(result))


def test_answers_stand_side_by_side_with_their_changes(seen: dict[str, Any]) -> None:
    first = seen["first"]
    assert first["place"] == "1 / 5"
    assert first["texts"] == ["no", "ok, the cat sat"]
    assert (first["removed"], first["added"]) == (["no"], ["ok, the cat sat"])
    assert "seen in training" in first["meta"]
    assert "nearer to the reference" in first["meta"]


def test_keys_step_round_and_leave_typing_alone(seen: dict[str, Any]) -> None:
    assert seen["right"]["place"] == "2 / 5"
    assert seen["round"]["place"] == "5 / 5"
    assert seen["typing"]["place"] == "5 / 5"


def test_texts_stay_texts(seen: dict[str, Any]) -> None:
    assert seen["right"]["texts"] == [NASTY, NASTY + "more"]
    assert seen["right"]["added"] == ["more"]
    assert {look["images"] for look in seen.values()} == {0}
    assert {look["hit"] for look in seen.values()} == {0}


def test_search_and_filters_choose(seen: dict[str, Any]) -> None:
    assert seen["found"]["place"] == "1 / 1"
    assert seen["found"]["texts"] == ["same", "same"]
    assert seen["none"]["place"] == "no prompt fits"
    assert seen["trained"]["meta"].startswith("p1 ")
    assert seen["area"]["meta"].startswith("facts-en-01")
    assert seen["flagged"]["meta"].startswith("p2 ")
    assert seen["drawn"]["texts"] == [NASTY + "!", NASTY + "more!"]
    assert seen["general"]["texts"] == ["(empty)", "yes"], "asked greedily only"


def test_a_link_of_the_verdict_shows_its_prompt(seen: dict[str, Any]) -> None:
    linked = seen["linked"]
    assert linked["meta"].startswith("p4 ")
    assert "loop: looping" in [badge.strip() for badge in linked["badges"]]
    assert "cut by length" in linked["badges"]


def test_both_languages_and_both_lights(seen: dict[str, Any]) -> None:
    assert seen["first"]["labels"] == ["Verdict", "Answers", "Measures", "How"]
    assert seen["chinese"]["labels"] == ["结论", "回答", "指标", "设置"]
    assert seen["light"]["paper"] != seen["dark"]["paper"]


def test_nothing_is_wider_than_the_window(seen: dict[str, Any]) -> None:
    assert [name for name, look in seen.items() if look["wide"]] == []
