"""Preview rows as one self-contained HTML page: no file, font or script from elsewhere.

The rows are embedded as JSON; a few lines of script show one at a time, step with buttons or
arrow keys, filter by flag and show ids. Text only ever enters the page as text.
"""

import dataclasses
import json
from collections.abc import Iterable

from glmforge.data.conversation import shown
from glmforge.data.preview import PreviewRow


def preview_page(rows: Iterable[PreviewRow], title: str) -> str:
    """The page's HTML.

    Args:
        rows: what ``preview_rows`` yields; all of them are embedded.
        title: of the page, plain text.
    """
    data = [_plain(row) for row in rows]
    embedded = json.dumps(data, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    named = json.dumps(title, ensure_ascii=True).replace("<", "\\u003c")
    return _PAGE.replace("@TITLE@", named).replace("@ROWS@", embedded)


def _plain(row: PreviewRow) -> dict[str, object]:
    values = dataclasses.asdict(row)
    values["tokens"] = [
        [shown(token.text), int(token.trained), int(token.control), list(token.ids)]
        for token in row.tokens
    ]
    values["notes"] = [shown(note) for note in row.notes]
    return values


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Training rows</title>
<style>
:root { color-scheme:light dark; --ink:#1d2329; --paper:#fbfaf7; --line:#d9d5cb;
  --trained:#cfe9d3; --trained2:#b9dec0; --control:#7a4d00; --flag:#8a3b12; --faint:#62686f; }
@media (prefers-color-scheme: dark) { :root { --ink:#e6e4df; --paper:#17191c; --line:#33373c;
  --trained:#1f4a2b; --trained2:#2a5c38; --control:#f0bd6a; --flag:#ffb38a; --faint:#8d9299; } }
* { box-sizing:border-box }
body { margin:0; background:var(--paper); color:var(--ink);
  font:16px/1.7 system-ui, "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", sans-serif }
header { position:sticky; top:0; background:var(--paper); border-bottom:1px solid var(--line);
  padding:.6rem 1rem; display:flex; flex-wrap:wrap; gap:.6rem 1rem; align-items:center }
h1 { font-size:1rem; margin:0 auto 0 0 }
button, select { font:inherit; padding:.15rem .7rem; border:1px solid var(--line);
  border-radius:.4rem; background:transparent; color:inherit }
button:hover { border-color:var(--faint) }
nav { display:flex; gap:.6rem; align-items:center; white-space:nowrap }
#place { min-width:4.5rem; text-align:center; font-variant-numeric:tabular-nums }
main { max-width:62rem; margin:0 auto; padding:1rem }
#about { color:var(--faint); margin:0 0 .6rem }
#notes { color:var(--flag); margin:0 0 1rem; padding-left:1.2rem }
#row { white-space:pre-wrap; overflow-wrap:anywhere }
.t { border-radius:.15rem }
.t:nth-child(odd) { background:color-mix(in srgb, var(--line) 35%, transparent) }
.trained { background:var(--trained) !important }
.trained:nth-child(odd) { background:var(--trained2) !important }
.control { color:var(--control); font:600 .85em ui-monospace, monospace }
.role::before { content:"\\A"; white-space:pre }
.ids { display:none; color:var(--faint); font:.7em ui-monospace, monospace; padding:0 .2em }
body.with-ids .ids { display:inline }
.key { color:var(--ink); padding:0 .4rem; border-radius:.2rem }
footer { color:var(--faint); max-width:62rem; margin:0 auto; padding:0 1rem 2rem; font-size:.85rem }
</style></head><body>
<header><h1 id="title"></h1>
<label>flag <select id="flag"></select></label>
<nav><button id="previous" aria-label="previous row">&larr; previous</button>
<span id="place" aria-live="polite"></span>
<button id="next" aria-label="next row">next &rarr;</button></nav>
<label><input type="checkbox" id="ids"> ids</label></header>
<main><p id="about"></p><ul id="notes"></ul><div id="row"></div></main>
<footer><span class="key trained">trained</span>: the model learns to write these tokens. Everything
else it only reads. ⏎ marks a newline token; a role token begins a line here, not in the data.
Arrow keys step.</footer>
<script>
"use strict";
const rows = @ROWS@, title = @TITLE@;
const at = id => document.getElementById(id);
let chosen = rows, number = 0;
function piece(token) {
  const [text, trained, control, ids] = token;
  const span = document.createElement("span");
  span.className = "t" + (trained ? " trained" : "") + (control ? " control" : "") +
    (control && /^<\\|\\w+\\|>$/.test(text) ? " role" : "");
  const words = control ? text : text.replaceAll("\\n", "⏎\\n");
  const ended = words.endsWith("\\n");  // the ids of a newline stand before it
  span.textContent = ended ? words.slice(0, -1) : words;
  const small = document.createElement("span");
  small.className = "ids";
  small.textContent = ids.join(" ");
  span.append(small, ended ? "\\n" : "");
  return span;
}
function show() {
  const row = chosen[number];
  at("place").textContent = chosen.length ? (number + 1) + " / " + chosen.length : "no row";
  const sizes = row && (row.tokens.length ?
    row.total_tokens + " tokens, " + row.trained_tokens + " trained" : "gives no row");
  at("about").textContent = !row ? "" :
    row.source + " — " + sizes + (row.flags.length ? " — " + row.flags.join(", ") : "");
  at("notes").replaceChildren(...(row ? row.notes : []).map(note => {
    const item = document.createElement("li");
    item.textContent = note;
    return item;
  }));
  at("row").replaceChildren(...(row ? row.tokens : []).map(piece));
}
function step(by) {
  if (!chosen.length) return;
  number = (number + by + chosen.length) % chosen.length;
  show();
}
const counted = {};
for (const row of rows) for (const flag of row.flags) counted[flag] = (counted[flag] || 0) + 1;
at("flag").append(new Option("all rows (" + rows.length + ")", ""),
  ...Object.entries(counted).sort((a, b) => b[1] - a[1])
    .map(([flag, count]) => new Option(flag + " (" + count + ")", flag)));
at("flag").onchange = event => {
  const flag = event.target.value;
  chosen = flag ? rows.filter(row => row.flags.includes(flag)) : rows;
  number = 0;
  show();
};
at("previous").onclick = () => step(-1);
at("next").onclick = () => step(1);
at("ids").onchange = event => document.body.classList.toggle("with-ids", event.target.checked);
document.addEventListener("keydown", event => {
  if (event.target.tagName === "SELECT") return;
  if (event.key === "ArrowRight") step(1);
  if (event.key === "ArrowLeft") step(-1);
});
at("title").textContent = document.title = title;
show();
</script></body></html>
"""
