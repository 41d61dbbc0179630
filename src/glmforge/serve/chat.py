"""`glmforge chat`: a terminal conversation with a model, with or without an adapter.

Lines in, streamed answers out; lines that begin with a slash are commands. Base and adapter share
one loaded model and one conversation. Lines may come from a pipe: then nothing is prompted for.
Ctrl-C ends the answer that is being written, not the program. What the conversation remembers, and
what of it fits the model, is in ``conversation``.
"""

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from glmforge.errors import DataError
from glmforge.serve.called_tools import names_tool
from glmforge.serve.conversation import Dialogue, TooLong
from glmforge.serve.opening import BASE, OpenModels, find_paths, open_models
from glmforge.serve.replies import OBSERVATION, Ask, Reply, reply

HELP = "/clear forgets the conversation, /again asks anew, /exit (or Ctrl-D) ends"
SWITCHES = "/base and /tuned switch the model"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """How the terminal answers: `temperature` 0 is greedy, tokens are the longest answer."""

    system: str | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    max_new_tokens: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None


def open_chat_model(model_dir: Path, adapter: Path | None) -> tuple[Any, Any]:
    """Return (model, tokenizer) ready to answer, on the GPU in bf16 where there is one.

    Where no adapter is given, `model_dir` may be a run or a checkpoint too, as for export.

    Raises:
        ModelError, AdapterError: a directory that cannot be opened, an adapter that does not fit.
    """
    models = open_chat(model_dir, adapter)
    return models.model, models.tokenizer


def open_chat(model_dir: Path, adapter: Path | None) -> OpenModels:
    """Return the base and its adapter, which is called "tuned" here, whatever its directory."""
    found = find_paths(model_dir, [] if adapter is None else [("tuned", adapter)])
    adapters = dict(zip(["tuned"], found.adapters.values()))
    return open_models(replace(found, adapters=adapters))


def run_chat(
    models: OpenModels,
    settings: ChatSettings,
    *,
    prompts: list[str] | None = None,
    as_json: bool = False,
    read: Callable[[str], str] = input,
) -> None:
    """Talk until the user ends it, or answer `prompts` once each and return.

    Args:
        models: the base and its adapter.
        settings: how to answer.
        prompts: answer these, each in a conversation of its own, instead of reading lines.
        as_json: with `prompts`, print one JSON object a line instead of streaming text.
        read: where lines come from.
    """
    for note in models.notes:
        _say(note)
    if prompts is not None:
        _answer_each(models, settings, prompts, as_json=as_json)
        return
    on_terminal = sys.stdin.isatty() or read is not input
    _Terminal(models, settings, read, prompting=on_terminal).run()


def _answer_each(
    models: OpenModels, settings: ChatSettings, prompts: list[str], *, as_json: bool
) -> None:
    for text in prompts:
        dialogue = Dialogue(models, settings.system, settings.tools)
        dialogue.add({"role": "user", "content": text})
        prompt, room = dialogue.fit(settings.max_new_tokens)
        if not as_json:
            print(f"> {text}")
        ask = _ask(settings, prompt, room, dialogue.tool_names)
        result = reply(models, models.names[-1], ask, on_text=_ignore if as_json else _print)
        if as_json:
            row = {"prompt": text, "answer": result.text, "stop_reason": result.finish}
            if result.call is not None:
                row |= {"tool": result.call.name, "arguments": result.call.arguments}
            print(json.dumps(row, ensure_ascii=False))
        else:
            _end_answer(result, room)


def _ask(settings: ChatSettings, prompt: list[int], room: int, tools: tuple[str, ...]) -> Ask:
    return Ask(
        prompt=prompt,
        max_new_tokens=room,
        temperature=settings.temperature,
        top_p=settings.top_p,
        seed=settings.seed,
        tool_names=tools,
    )


class _Terminal:
    """One user, one conversation."""

    def __init__(
        self,
        models: OpenModels,
        settings: ChatSettings,
        read: Callable[[str], str],
        *,
        prompting: bool,
    ) -> None:
        self._models, self._settings, self._read = models, settings, read
        self._prompting = prompting
        self._name = models.names[-1]
        self._dialogue = Dialogue(models, settings.system, settings.tools)
        self._awaits_tool = False

    def run(self) -> None:
        """Read lines until one says to end."""
        switches = [SWITCHES] if len(self._models.names) > 1 else []
        _say("; ".join([HELP, *switches]))
        interrupted = False
        while True:
            try:
                line = self._read(self._prompt()).strip()
            except EOFError:
                if self._prompting:
                    print()
                return
            except KeyboardInterrupt:
                print()
                if interrupted:
                    return
                interrupted = True
                _say("Ctrl-C again, Ctrl-D or /exit ends")
                continue
            interrupted = False
            if line == "/exit":
                return
            if line.startswith("/"):
                self._command(line)
            elif line:
                role = "observation" if self._awaits_tool else "user"
                self._take({"role": role, "content": line})

    def _prompt(self) -> str:
        if not self._prompting:
            return ""
        if self._awaits_tool:
            return "tool result> "
        return f"{self._name}> " if len(self._models.names) > 1 else "> "

    def _command(self, line: str) -> None:
        name, _, rest = line[1:].partition(" ")
        if name == "clear":
            self._clear()
        elif name == "system":
            self._dialogue.system = rest.strip() or None
            self._clear()
            _say("system message " + ("set" if rest.strip() else "removed") + ", begun anew")
        elif name == "again":
            self._again()
        elif name in ("base", "tuned"):
            self._switch(name)
        else:
            _say(f"/{name} is no command: {HELP}; /system TEXT; {SWITCHES}")

    def _clear(self) -> None:
        self._dialogue.clear()
        self._awaits_tool = False

    def _again(self) -> None:
        question = self._dialogue.take_back_last()
        if question is None:
            _say("nothing was asked yet")
        else:
            self._take(question)

    def _switch(self, name: str) -> None:
        wanted = BASE if name == "base" else self._models.names[-1]
        if len(self._models.names) == 1:
            _say(f"/{name}: there is one model; give MODEL --adapter DIR, or a LoRA run, for two")
            return
        self._name = wanted
        _say(f"{wanted} answers now; the conversation goes on (/clear begins anew)")

    def _take(self, message: dict[str, Any]) -> None:
        """Answer a message; what cannot be answered is said and not remembered."""
        self._dialogue.add(message)
        try:
            dropped = self._dialogue.drop_old(self._settings.max_new_tokens)
            prompt, room = self._dialogue.fit(self._settings.max_new_tokens)
        except (DataError, TooLong) as error:
            self._dialogue.remove_last()
            _say(str(error))
            return
        if dropped:
            _say(
                f"the conversation is longer than the model's {self._models.positions:,} "
                f"positions: its first {dropped} turn{'s are' if dropped > 1 else ' is'} left out"
            )
        ask = _ask(self._settings, prompt, room, self._dialogue.tool_names)
        with _interruptible() as interrupted:
            try:
                result = reply(self._models, self._name, ask, on_text=_print, cancelled=interrupted)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                self._dialogue.remove_last()
                _say(f"out of GPU memory at {len(prompt):,} tokens: /clear, or a shorter message")
                return
        _end_answer(result, room)
        self._remember(result)

    def _remember(self, result: Reply) -> None:
        spelled = result.stop_token == OBSERVATION and names_tool(result.raw)
        self._awaits_tool = result.call is not None or spelled
        if result.call is not None:
            self._dialogue.add_call(result.call)
        elif self._awaits_tool:
            self._dialogue.add_raw_call(result.raw)
        elif result.text:
            self._dialogue.add({"role": "assistant", "content": result.text})
        else:
            self._dialogue.remove_last()
        if self._awaits_tool:
            _say("the model waits for a tool: type what the tool returns")


def _print(text: str) -> None:
    # Half surrogates, which a broken vocabulary may spell, cannot be written to a terminal.
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), end="", flush=True)


def _ignore(text: str) -> None:
    del text


def _say(text: str) -> None:
    print(f"[{text}]", file=sys.stderr, flush=True)


def _end_answer(result: Reply, room: int) -> None:
    """End the line, show a tool call, and say why an answer stops where it does."""
    if result.call is not None:
        print(f"calls {result.call.name}: {result.call.arguments}", end="")
    print(flush=True)
    if result.finish == "length":
        _say(f"cut at {room} tokens")
    elif result.finish == "cancelled":
        _say("stopped")
    elif result.finish == "stop" and not result.text:
        _say("empty answer")


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C inside the block into a true answer; a second one interrupts."""
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set
        return
    before = signal.getsignal(signal.SIGINT)

    def press(number: int, frame: Any) -> None:
        pressed.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, press)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)
