"use strict";
// One input, a conversation for each side. Texts of models and users become text nodes only.
const data = JSON.parse(document.getElementById("data").textContent);
const at = id => document.getElementById(id);
const root = document.documentElement;
const words = {
  user: ["you", "你"], assistant: ["answer", "回答"], error: ["error", "错误"],
  length: ["cut by length", "因长度截断"], stopped: ["stopped", "已停止"],
  tokens: ["tokens", "词元"], empty: ["(empty)", "（空）"], waiting: ["waiting …", "等待中……"],
  calls: ["calls", "调用"], hint: ["Enter sends, Shift+Enter begins a line", "回车发送，Shift+回车换行"],
  lost: ["the server cannot be reached", "无法连接服务器"], base: ["base", "基座"],
};
let language = /^zh/i.test(navigator.language) ? 1 : 0;
let running = null;
const say = name => words[name] ? words[name][language] : name;

function element(kind, className, ...content) {
  const made = document.createElement(kind);
  made.className = className;
  made.append(...content);
  return made;
}

function spoken(name) {
  // A word that follows the language button.
  const made = element("span", "", say(name));
  made.dataset.word = name;
  return made;
}

function makeSide(choices) {
  const heading = element("h2", "");
  let name = () => choices[0];
  if (choices.length > 1) {
    const select = element("select", "", ...choices.map(choice => new Option(choice, choice)));
    select.setAttribute("aria-label", "model / 模型");
    select.addEventListener("change", () => clear(side));
    name = () => select.value;
    heading.append(select);
  } else if (choices[0] === "base") heading.append(spoken("base"));
  else heading.append(choices[0]);
  const log = element("div", "log");
  log.setAttribute("aria-live", "polite");
  const side = { name, log, messages: [] };
  at("sides").append(element("section", "side", heading, log));
  return side;
}

function clear(side) {
  side.messages = [];
  side.log.replaceChildren();
}

function add(side, kind, text) {
  const label = element("div", "label", spoken(kind));
  const body = element("div", "text", text);
  const box = element("div", "message " + kind, label, body);
  side.log.append(box);
  return { box, label, body };
}

function note(shown, ...parts) {
  shown.label.append(" · ", ...parts);
}

async function* events(response) {
  // Server-sent events: lines "data: JSON", a blank line after each.
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const lines = held.split("\n");
    held = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      if (line === "data: [DONE]") return;
      yield JSON.parse(line.slice(6));
    }
  }
}

function fail(messages, shown, message) {
  shown.box.className = "message error";
  shown.label.replaceChildren(spoken("error"));
  shown.body.textContent = message;
  // What could not be answered is not remembered: the next question begins from before it.
  messages.pop();
}

async function answer(side, question, signal) {
  const messages = side.messages;  // clearing gives the side a new list
  add(side, "user", question);
  messages.push({ role: "user", content: question });
  const shown = add(side, "assistant", "");
  shown.box.classList.add("busy");
  const system = at("system").value.trim();
  const opening = system ? [{ role: "system", content: system }] : [];
  const longest = Number(at("longest").value);
  let text = "", finish = "", counts = null, problem = "";
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST", signal, headers: { "Content-Type": "application/json" },
      body: JSON.stringify({
        model: side.name(), messages: [...opening, ...messages], stream: true,
        stream_options: { include_usage: true }, temperature: Number(at("temperature").value) || 0,
        ...(longest >= 1 ? { max_tokens: Math.floor(longest) } : {}),
      }),
    });
    if (!response.ok) problem = (await response.json()).error.message;
    else for await (const part of events(response)) {
      if (part.error) { problem = part.error.message; break; }
      if (part.usage) counts = part.usage;
      const choice = part.choices && part.choices[0];
      if (!choice) continue;
      if (choice.delta.content) { text += choice.delta.content; shown.body.textContent = text; }
      finish = choice.finish_reason || finish;
    }
  } catch (error) {
    if (error.name === "AbortError") finish = "stopped";
    else problem = say("lost");
  }
  shown.box.classList.remove("busy");
  if (problem) return fail(messages, shown, problem);
  if (!text) {
    shown.body.append(element("span", "label", spoken("empty")));
    messages.pop();
  } else messages.push({ role: "assistant", content: text });
  if (finish === "length" || finish === "stopped") note(shown, spoken(finish));
  if (counts) note(shown, counts.completion_tokens + " ", spoken("tokens"));
}

async function send() {
  const question = at("input").value.trim();
  if (!question || running) return;
  running = new AbortController();
  at("input").value = "";
  at("send").hidden = true;
  at("stop").hidden = false;
  const all = sides.map(side => answer(side, question, running.signal));
  scrollTo(0, document.body.scrollHeight);
  await Promise.all(all);
  running = null;
  at("send").hidden = false;
  at("stop").hidden = true;
}

function show() {
  root.lang = language ? "zh" : "en";
  at("language").textContent = language ? "English" : "中文";
  at("input").placeholder = say("hint");
  for (const node of document.querySelectorAll("[data-word]")) node.textContent = say(node.dataset.word);
}

at("send").addEventListener("click", send);
at("stop").addEventListener("click", () => running && running.abort());
at("clear").addEventListener("click", () => {
  if (running) running.abort();
  sides.forEach(clear);
});
at("input").addEventListener("keydown", event => {
  // While an input method composes, Enter chooses a character.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
  event.preventDefault();
  send();
});
at("language").addEventListener("click", () => { language = 1 - language; show(); });
at("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
const sides = [makeSide(data.models.slice(0, 1))];
if (data.models.length > 1) sides.push(makeSide(data.models.slice(1)));
show();
