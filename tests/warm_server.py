"""Loads stock torch, transformers and PEFT once and forks a child for every program asked for.

Run by warm.py: a request is a line of JSON on standard input, its answer the exit status on a line
of standard output. A child is a process of its own: it has what stock libraries are before
anybody used them, nothing of glmforge and no model, and it takes no five seconds to start.
"""

import gc
import json
import os
import runpy
import sys


def run_program(argv: list[str]) -> None:
    """What ``python argv`` does: -P, -c PROGRAM, -m MODULE or a script, and its arguments."""
    sys.orig_argv = [sys.executable, *argv]
    here = [""]
    if argv[0] == "-P":
        here, argv = [], argv[1:]
    if argv[0] == "-c":
        sys.argv = ["-c", *argv[2:]]
        sys.path[:0] = here
        exec(compile(argv[1], "<string>", "exec"), {"__name__": "__main__"})
    elif argv[0] == "-m":
        sys.argv = ["-m", *argv[2:]]
        sys.path[:0] = here and [os.getcwd()]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = argv
        sys.path[:0] = here and [os.path.dirname(os.path.abspath(argv[0]))]
        runpy.run_path(argv[0], run_name="__main__")


def become(request: dict) -> None:
    """Give this process the output files, the folder and the environment of one program."""
    for descriptor, name in ((1, request["out"]), (2, request["err"])):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    run_program(request["argv"])


def main() -> None:
    requests, answers = os.dup(0), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what a library prints is no answer
    sys.path.pop(0)  # this folder
    gc.disable()
    import peft  # noqa: F401
    import torch  # noqa: F401
    from transformers import AutoModelForCausalLM, AutoTokenizer, GlmForCausalLM  # noqa: F401

    assert "glmforge" not in sys.modules
    gc.freeze()  # what is loaded stays shared with the children
    gc.enable()
    for line in os.fdopen(requests):
        process = os.fork()
        if process == 0:
            become(json.loads(line))  # an exception ends it as it ends any program
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)  # tearing down all libraries takes longer than most programs
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


if __name__ == "__main__":
    main()
