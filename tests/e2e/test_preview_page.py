"""The page of `glmforge data preview --html`, driven in a real browser."""

import html
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from e2e_project import Project

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
VISIT = """
<pre id="result"></pre><script>
const seen = [];
const look = () => seen.push({
  place: at("place").textContent, about: at("about").textContent,
  notes: [...document.querySelectorAll("#notes li")].map(item => item.textContent),
  trained: [...document.querySelectorAll(".trained .ids")].length,
  text: [...document.querySelectorAll("#row .t")]
    .map(item => item.firstChild ? item.firstChild.textContent : "").join(""),
  ids: getComputedStyle(document.querySelector(".ids") || document.body).display,
  bold: document.querySelectorAll("#row b").length,
  wide: document.documentElement.scrollWidth > innerWidth,
});
const press = key => document.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
look();
at("next").click(); look();
press("ArrowLeft"); press("ArrowLeft"); look();
at("ids").click(); press("ArrowRight"); look();
at("flag").value = "placeholder"; at("flag").onchange({target: at("flag")}); look();
at("result").textContent = JSON.stringify(seen);
</script></body>"""
ROWS = [
    {
        "messages": [
            {"role": "user", "content": "<b>q</b> 1"},
            {"role": "assistant", "content": "a"},
        ]
    },
    {
        "messages": [
            {"role": "user", "content": "hello {{name}}"},
            {"role": "assistant", "content": "parcel 7\narrives"},
        ]
    },
    {"messages": [{"role": "user", "content": "no answer"}]},
]


@pytest.fixture
def browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"needs a browser: none of {', '.join(BROWSERS)} is on the PATH")
    return found


def visit(browser: str, page: Path, width: int) -> list[dict[str, Any]]:
    text = page.read_text(encoding="utf-8")
    driven = page.with_name("driven.html")
    driven.write_text(text.replace("</body>", VISIT), encoding="utf-8")
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000",
         f"--window-size={width},800", "--dump-dom", driven.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    result = done.stdout.split('<pre id="result">')[1].split("</pre>")[0]
    return json.loads(html.unescape(result))


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 500])
def test_the_page_shows_steps_filters_and_ids(
    project: Project, tiny_model: Path, browser: str, width: int
) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    (project.directory / "rows.jsonl").write_text(lines, encoding="utf-8")
    done = project.run("glmforge", "data", "preview", "rows.jsonl", "--model", str(tiny_model),
                       "--html", "page.html")  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second, back, with_ids, flagged = visit(browser, project.directory / "page.html", width)
    assert first["place"] == "1 / 3"
    assert "<b>q</b>" in first["text"], "text is shown as text"
    assert first["bold"] == 0
    assert first["trained"] > 0
    assert first["ids"] == "none"
    assert second["place"] == "2 / 3"
    assert "parcel 7⏎" in second["text"]
    assert back["place"] == "3 / 3", "stepping goes round"
    assert back["about"] == "rows.jsonl:3 — gives no row — no-assistant"
    assert "no assistant message" in back["notes"][0]
    assert (with_ids["place"], with_ids["ids"]) == ("1 / 3", "inline")
    assert flagged["place"] == "1 / 1"
    assert "rows.jsonl:2" in flagged["about"]
    assert not any(look["wide"] for look in (first, second, back, with_ids, flagged))
