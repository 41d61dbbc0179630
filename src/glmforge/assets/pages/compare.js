"use strict";
// Shows one prompt at a time. Texts of models and users become text nodes and nothing else.
const data = JSON.parse(document.getElementById("data").textContent);
const at = id => document.getElementById(id);
const root = document.documentElement;
const words = {
  all: ["all prompts", "全部提示"], asked: ["your prompts", "您的提示"],
  seen: ["seen in training", "训练中见过"], heldOut: ["not in the training data", "训练中未见过"],
  general: ["general set", "通用问题"], anyFlag: ["any answer", "所有回答"],
  none: ["no prompt fits", "没有符合的提示"], reference: ["reference", "参考答案"],
  check: ["check", "检查规则"], stop: ["ended by itself", "自行结束"],
  length: ["cut by length", "因长度截断"], tokens: ["tokens", "词元"], loops: ["loop:", "循环："],
  formed: ["form ok", "格式符合"], unformed: ["form wrong", "格式不符"],
  passes: ["check passed", "检查通过"], fails: ["check failed", "检查未通过"],
  exact: ["equals the reference", "与参考一致"], empty: ["(empty)", "（空）"],
  changes: ["changes of", "对比："], user: ["user", "用户"], system: ["system", "系统"],
  assistant: ["assistant", "助手"], observation: ["tool result", "工具结果"],
};
let language = /^zh/i.test(navigator.language) ? 1 : 0;
let chosen = [], number = 0;
const say = name => words[name] ? words[name][language] : name;

function element(kind, className, ...content) {
  const made = document.createElement(kind);
  made.className = className;
  made.append(...content);
  return made;
}

function fill(select, options) {
  const before = select.value;
  select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
  if (options.some(([value]) => value === before)) select.value = before;
}

const kinds = {
  all: () => true, asked: p => p.group === "asked", seen: p => p.seen === true,
  heldOut: p => p.seen === false && p.group === "asked", general: p => p.group === "general",
};

function inKind(prompt, kind) {
  return kind.startsWith("area:") ? prompt.area === kind.slice(5) : kinds[kind](prompt);
}

function fillControls() {
  const count = kind => data.prompts.filter(p => inKind(p, kind)).length;
  const areas = Object.keys(data.areas).filter(area => data.prompts.some(p => p.area === area));
  const named = [...Object.keys(kinds).map(kind => [kind, say(kind)]),
    ...areas.map(area => ["area:" + area, "– " + (language ? data.areas[area] : area)])];
  fill(at("kind"), named.filter(([kind]) => count(kind))
    .map(([kind, text]) => [kind, text + " (" + count(kind) + ")"]));
  const flags = Object.entries(data.flags)
    .map(([flag, titles]) => [flag, titles[language], data.prompts.filter(p => p.flags.includes(flag)).length])
    .filter(row => row[2]);
  fill(at("flag"), [["", say("anyFlag")], ...flags.map(([flag, text, n]) => [flag, text + " (" + n + ")"])]);
  fill(at("way"), data.ways.map(way => [way, way]));
  fill(at("beside"), data.models.slice(1)
    .map((model, n) => [String(n + 1), say("changes") + " " + model.name]));
  at("beside").hidden = data.models.length < 3;
  at("way").hidden = data.ways.length < 2;
}

function answerOf(model, n) {
  // The general set is asked greedily only.
  return data.answers[model][at("way").value][n] || data.answers[model].greedy[n];
}

function textOf(answer) {
  return answer.parts ? answer.parts.filter(part => part[0] >= 0).map(part => part[1]).join("") : answer.text;
}

function haystack(n) {
  const prompt = data.prompts[n];
  return [prompt.id, prompt.source, prompt.reference || "", ...prompt.messages.map(m => m[1]),
    ...data.models.map((_, model) => textOf(answerOf(model, n)))].join("\n").toLowerCase();
}

function choose(keep) {
  const current = keep === undefined ? chosen[number] : keep;
  const needle = at("search").value.trim().toLowerCase();
  const flag = at("flag").value, kind = at("kind").value;
  chosen = data.prompts.map((_, n) => n).filter(n => inKind(data.prompts[n], kind) &&
    (!flag || data.prompts[n].flags.includes(flag)) && (!needle || haystack(n).includes(needle)));
  number = Math.max(0, chosen.indexOf(current));
  show();
}

function marked(parts, wanted) {
  // The base's side keeps what was removed, the tuned side what was added.
  const text = element("div", "text");
  for (const [kind, words] of parts) {
    if (kind === 0) text.append(words);
    else if (kind === wanted) text.append(element(kind > 0 ? "ins" : "del", "", words));
  }
  return text;
}

function badges(answer) {
  const found = [[answer.stop === "stop" ? "" : "bad", say(answer.stop)],
    ["", answer.tokens + " " + say("tokens")], ["", "rep-4 " + answer.rep]];
  if (answer.loop) found.push(["bad", say("loops") + " " + answer.loop.slice(0, 30)]);
  if (answer.format !== null) found.push(answer.format ? ["good", say("formed")] : ["bad", say("unformed")]);
  if (answer.passes !== null) found.push(answer.passes ? ["good", say("passes")] : ["bad", say("fails")]);
  if (answer.exact) found.push(["good", say("exact")]);
  if (answer.near !== undefined) found.push(["", "ROUGE-L " + answer.near]);
  return element("div", "badges", ...found.map(([kind, text]) => element("span", "badge " + kind, text)));
}

function column(n, model) {
  const answer = answerOf(model, n), beside = answerOf(Number(at("beside").value) || 1, n);
  const text = marked(model ? answer.parts : beside.parts, model ? 1 : -1);
  if (!text.textContent) text.append(element("span", "label", say("empty")));
  return element("section", "column", element("h3", "", data.models[model].name), badges(answer), text);
}

function show() {
  const n = chosen[number], prompt = data.prompts[n];
  at("place").textContent = chosen.length ? (number + 1) + " / " + chosen.length : say("none");
  if (!prompt) { at("card").replaceChildren(); return; }
  const about = [prompt.id, prompt.source, prompt.seen === null ? "" : say(prompt.seen ? "seen" : "heldOut"),
    ...prompt.flags.map(flag => data.flags[flag][language])].filter(Boolean);
  const card = [element("p", "meta", about.join(" · "))];
  for (const [role, text] of prompt.messages) {
    card.push(element("div", "message", element("div", "label", say(role)), element("div", "text", text)));
  }
  if (prompt.reference !== null) {
    card.push(element("div", "reference", element("div", "label", say("reference")),
      element("div", "text", prompt.reference)));
  }
  if (prompt.check) card.push(element("p", "meta", say("check") + ": " + prompt.check));
  card.push(element("div", "columns", ...data.models.map((_, model) => column(n, model))));
  at("card").replaceChildren(...card);
}

function step(by) {
  if (!chosen.length) return;
  number = (number + by + chosen.length) % chosen.length;
  show();
}

function follow() {
  // A link of the verdict: #p=ID shows that prompt among all.
  const match = /^#p=(.*)$/.exec(location.hash);
  const wanted = match ? data.prompts.findIndex(p => p.id === decodeURIComponent(match[1])) : -1;
  if (wanted < 0) return;
  at("search").value = at("flag").value = "";
  at("kind").value = "all";
  choose(wanted);
  at("answers").scrollIntoView();
}

function speak() {
  root.lang = language ? "zh" : "en";
  document.title = language ? "微调前后对比" : "Before and after";
  at("search").placeholder = language ? "搜索 ( / )" : "search ( / )";
  at("language").textContent = language ? "English" : "中文";
  fillControls();
  show();
}

at("language").onclick = () => { language = 1 - language; speak(); };
at("theme").onclick = () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" :
    matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
};
at("search").oninput = () => choose();
for (const id of ["kind", "flag", "way"]) at(id).onchange = () => choose();
at("beside").onchange = show;
at("previous").onclick = () => step(-1);
at("next").onclick = () => step(1);
addEventListener("hashchange", follow);
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key === "ArrowRight" || event.key === "j") step(1);
  else if (event.key === "ArrowLeft" || event.key === "k") step(-1);
  else if (event.key === "/") { event.preventDefault(); at("search").focus(); }
});
speak();
choose(0);
follow();
