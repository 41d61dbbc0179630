"""`glmforge chat`: streaming, history, tools, switching, long conversations, Ctrl-C, pipes."""

import io
import json
import os
import signal
import threading
import time

import pytest
from served import scripted
from typer.testing import CliRunner

from glmforge.cli.main import app
from glmforge.data import generation_prompt
from glmforge.errors import DataError
from glmforge.serve.chat import ChatSettings, open_chat, run_chat
from glmforge.serve.conversation import TooLong

TOOLS = [{"name": "get_weather", "description": "天气", "parameters": {"type": "object"}}]
CALL = "get_weather\n```python\ntool_call(city='杭州')\n```"


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def talk(models, *lines, **settings):
    """Have a conversation of these lines; an exception among them is raised in its place."""
    left = list(lines)

    def read(prompt):
        if not left:
            raise EOFError
        line = left.pop(0)
        if isinstance(line, type):
            raise line
        return line

    run_chat(models, ChatSettings(**settings), read=read)


def prompts_of(models, *histories, tools=None):
    return [generation_prompt(list(history), models.tokenizer, tools) for history in histories]


def test_the_model_is_told_the_whole_conversation_as_it_was_trained(capsys):
    models = scripted(("\n 好的", "<|user|>"), ("\n 再见 ", "<|user|>"))
    talk(models, "你好", "", "走了", system="简短回答")
    system = {"role": "system", "content": "简短回答"}
    expected = [[system, user("你好")], [system, user("你好"), assistant("好的"), user("走了")]]
    assert models.model.prompts == prompts_of(models, *expected)
    assert capsys.readouterr().out == "好的\n再见\n\n"


def test_commands_clear_the_conversation_ask_again_and_set_the_system_message(capsys):
    models = scripted(*[("ok", "<|user|>")] * 4)
    talk(models, "/again", "one", "two", "/again", "/clear", "/system be brief", "three", "/nope",
         "/exit", "never")  # fmt: skip
    brief = {"role": "system", "content": "be brief"}
    two = [user("one"), assistant("ok"), user("two")]
    expected = [[user("one")], two, two, [brief, user("three")]]
    assert models.model.prompts == prompts_of(models, *expected)
    said = capsys.readouterr().err
    assert "nothing was asked yet" in said
    assert "/nope is no command" in said


def test_a_tool_call_is_shown_and_its_result_can_be_typed(capsys):
    models = scripted((CALL, "<|observation|>"), ("\n 晴天", "<|user|>"), ("\n 好", "<|user|>"))
    talk(models, "天气？", '{"sky": "晴"}', "谢谢", tools=TOOLS)
    call = {"role": "assistant", "metadata": "get_weather", "content": CALL.split("\n", 1)[1]}
    first = [user("天气？")]
    second = [*first, call, {"role": "observation", "content": '{"sky": "晴"}'}]
    third = [*second, assistant("晴天"), user("谢谢")]
    assert models.model.prompts == prompts_of(models, first, second, third, tools=TOOLS)
    out, err = capsys.readouterr()
    assert out == 'calls get_weather: {"city": "杭州"}\n晴天\n好\n\n'
    assert "type what the tool returns" in err


def test_a_call_of_a_tool_nobody_named_is_shown_as_the_model_wrote_it(capsys):
    """It ends at the token that hands over to a tool: the next line is the result."""
    models = scripted((CALL, "<|observation|>"), ("\n 好", "<|user|>"), ("x", "<|observation|>"),
                      ("y", "<|user|>"))  # fmt: skip
    talk(models, "天气？", "晴", "下一个", "再一个")
    call = {"role": "assistant", "metadata": "get_weather", "content": CALL.split("\n", 1)[1]}
    history = [user("天气？"), call, {"role": "observation", "content": "晴"}]
    assert models.model.prompts[1] == prompts_of(models, history)[0]
    after = [*history, assistant("好"), user("下一个"), assistant("x"), user("再一个")]
    assert models.model.prompts[3] == prompts_of(models, after)[0]
    assert capsys.readouterr().out.startswith(CALL)


def test_old_turns_are_left_out_with_a_line_that_says_so(capsys):
    models = scripted(*[("\n 一二三四五六七八", "<|user|>")] * 6)
    models.model.config.max_position_embeddings = 90
    talk(models, *["问题问题问题"] * 6, system="S", max_new_tokens=16)
    lengths = [len(prompt) for prompt in models.model.prompts]
    assert max(lengths) <= 90 - 16
    system = generation_prompt([{"role": "system", "content": "S"}], models.tokenizer)[:-1]
    assert [prompt[: len(system)] for prompt in models.model.prompts] == [system] * 6
    assert "longer than the model's 90 positions: its first 1 turn is left out" in (
        capsys.readouterr().err
    )


def test_a_message_longer_than_the_model_is_refused_with_the_numbers_and_forgotten(capsys):
    models = scripted(("ok", "<|user|>"))
    models.model.config.max_position_embeddings = 40
    talk(models, "好" * 60, "hi")
    assert models.model.prompts == prompts_of(models, [user("hi")])
    err = capsys.readouterr().err
    tokens = len(prompts_of(models, [user("好" * 60)])[0])
    assert f"are {tokens} tokens; the model has 40 positions" in err


def test_ctrl_c_ends_the_answer_and_not_the_program(capsys):
    """What was said so far stays in the conversation."""
    models = scripted(("a b c d e f g h", "<|user|>"), ("after", "<|user|>"))
    generate = models.model.generate

    count = iter(range(1000))

    def pressed(stopping_criteria, **options):
        def criteria(ids, scores):
            if next(count) == 4:
                os.kill(os.getpid(), signal.SIGINT)
            return stopping_criteria(ids, scores)

        return generate(stopping_criteria=criteria, **options)

    models.model.generate = pressed
    before = signal.getsignal(signal.SIGINT)
    talk(models, "one", "two")
    out, err = capsys.readouterr()
    first, second = out.split("\n")[:2]
    assert "a b c d e f g h".startswith(first)
    assert (len(first) < 15, second) == (True, "after")
    assert "[stopped]" in err
    assert (
        models.model.prompts[1]
        == prompts_of(models, [user("one"), assistant(first), user("two")])[0]
    )
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_at_the_prompt_asks_once_more(capsys):
    models = scripted(("ok", "<|user|>"))
    talk(models, KeyboardInterrupt, "one", KeyboardInterrupt, KeyboardInterrupt, "never")
    assert len(models.model.prompts) == 1
    assert "Ctrl-C again" in capsys.readouterr().err


def test_base_and_tuned_answer_in_one_conversation(small_base, two_adapters, capsys):
    """On one loaded base; what each says alone it says here."""
    models = open_chat(small_base, two_adapters[0])
    assert models.names == ("base", "tuned")
    talk(models, "你好", "/clear", "/base", "你好", "/tuned", "/again", max_new_tokens=8)
    tuned, base, again = capsys.readouterr().out.splitlines()[:3]
    assert tuned == again != base
    models = scripted(("ok", "<|user|>"))
    talk(models, "/base")
    assert "there is one model" in capsys.readouterr().err


def test_prompts_are_answered_each_alone_and_as_json(capsys):
    models = scripted(("\n 一", "<|user|>"), (CALL, "<|observation|>"), ("long " * 20, None))
    settings = ChatSettings(tools=TOOLS, max_new_tokens=50)
    run_chat(models, settings, prompts=["a", "b", "c"], as_json=True)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == {"prompt": "a", "answer": "一", "stop_reason": "stop"}
    assert (rows[1]["tool"], rows[1]["arguments"]) == ("get_weather", '{"city": "杭州"}')
    assert rows[2]["stop_reason"] == "length"
    models.model.config.max_position_embeddings = 8
    with pytest.raises(TooLong, match="the model has 8 positions"):
        run_chat(models, settings, prompts=["a"])


def test_what_is_to_be_told_of_the_models_is_told_first(capsys):
    """On standard error, also where only a prompt is answered."""
    models = scripted(("ok", "<|user|>"))
    models.notes = ("tuned: its LoRA changes nothing",)
    run_chat(models, ChatSettings(), prompts=["a"], as_json=True)
    out, err = capsys.readouterr()
    assert json.loads(out)["answer"] == "ok"
    assert err == "[tuned: its LoRA changes nothing]\n"


def test_a_line_the_family_cannot_take_is_told_and_the_talk_goes_on(capsys, monkeypatch):
    models = scripted(("ok", "<|user|>"))
    refused = iter([True, False])

    def prompt(*inputs):
        if next(refused, False):
            raise DataError("no such thing")
        return generation_prompt(*inputs)

    monkeypatch.setattr("glmforge.serve.conversation.generation_prompt", prompt)
    talk(models, "one", "two")
    assert models.model.prompts == prompts_of(models, [user("two")])
    assert "no such thing" in capsys.readouterr().err


def test_lines_from_a_pipe_get_answers_and_no_prompts(small_base, two_adapters):
    """The command itself: standard output holds the answers and nothing else."""
    command = ["chat", str(small_base), "--adapter", str(two_adapters[0]), "--max-new-tokens", "4"]
    done = CliRunner().invoke(app, command, input="你好\n/base\n你好\n", catch_exceptions=False)
    assert done.exit_code == 0
    assert len(done.stdout.splitlines()) == 2
    assert "tuned>" not in done.output


def test_tools_come_from_a_file(small_base, tmp_path):
    from glmforge.cli.chat import _read_tools

    path = tmp_path / "tools.json"
    path.write_text(json.dumps(TOOLS), encoding="utf-8")
    assert _read_tools(path) == TOOLS
    path.write_text("[1]", encoding="utf-8")
    with pytest.raises(DataError, match="write a list of tools"):
        _read_tools(path)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match="not JSON"):
        _read_tools(path)


def test_characters_of_several_tokens_reach_a_terminal_whole(monkeypatch):
    """Every write is complete text, also at an emoji that takes four tokens."""

    class Terminal(io.StringIO):
        encoding = "utf-8"

        def write(self, text):
            writes.append(text)
            return super().write(text)

    writes: list[str] = []
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    models = scripted(("\n 好😀龘👩‍🚀", "<|user|>"))
    talk(models, "hi", max_new_tokens=100)
    assert terminal.getvalue() == "好😀龘👩‍🚀\n\n"
    assert not any("\ufffd" in text for text in writes)
    assert "😀" in writes


def test_answers_are_printed_while_they_come(monkeypatch):
    """The first piece is there long before the last token."""
    seen = []
    monkeypatch.setattr("glmforge.serve.chat._print", lambda text: seen.append(time.monotonic()))
    models = scripted(("one two three four five six", "<|user|>"))
    generate = models.model.generate

    def slow(stopping_criteria, **options):
        def criteria(ids, scores):
            time.sleep(0.02)
            return stopping_criteria(ids, scores)

        return generate(stopping_criteria=criteria, **options)

    models.model.generate = slow
    thread = threading.Thread(target=talk, args=(models, "hi"))
    thread.start()
    thread.join(30)
    assert len(seen) > 3
    assert seen[-1] - seen[0] > 0.05
