"""What the command line of compare says reaches the comparison, on one rank and on several."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from glmforge.cli import compare as command
from glmforge.cli.main import app
from glmforge.distributed.env import World
from glmforge.errors import GlmForgeError, UsageError

MODELS = ["compare", "--base", "b", "--tuned", "t1", "--tuned", "t2", "--prompts", "q.txt"]
MANY = [
    *["--no-references", "--out", "x/r.html", "--max-new-tokens", "9", "--batch-size", "3"],
    *["--beams", "4", "--seeds", "2", "--temperature", "0.5", "--top-p", "0.9"],
    *["--repetition-penalty", "1.3", "--format-regex", "a b.*", "--validation", "v1.jsonl"],
    *["--validation", "v2.jsonl", "--no-general", "--dtype", "fp32"],
    *["--judge-url", "http://h/v1", "--judge-model", "m", "--judge-key-env", "THE_KEY"],
]


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """The requests that reach the comparison, which itself is left out."""
    monkeypatch.setattr(command, "read_world", World)
    monkeypatch.setenv("THE_KEY", "secret")
    monkeypatch.chdir(tmp_path)
    requests = []
    monkeypatch.setattr(command, "_compared", lambda request, world: requests.append(request))
    return requests


def run(*arguments):
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_every_option_reaches_the_request(asked):
    run(*MODELS, *MANY)
    (request,) = asked
    assert (request.base, list(request.tuned)) == (Path("b"), [Path("t1"), Path("t2")])
    assert request.kept_dir == Path("x/r.answers")
    assert (request.references, request.general, request.dtype) == (False, False, "fp32")
    assert (request.max_new_tokens, request.batch_size) == (9, 3)
    assert [way.name for way in request.ways] == ["greedy", "beam-4", "sample-1", "sample-2"]
    drawn = request.ways[-1].sampling
    assert (drawn.temperature, drawn.top_p, drawn.repetition_penalty) == (0.5, 0.9, 1.3)
    assert request.form.regex == "a b.*"
    assert list(request.validation) == ["v1.jsonl", "v2.jsonl"]
    assert (request.judge.base_url, request.judge.key) == ("http://h/v1", "secret")


@pytest.mark.parametrize("options", [[], MANY, ["--references"]])
def test_each_rank_is_asked_the_same(asked, monkeypatch, options):
    """The key itself is in no command line: others could read it there."""
    started = []

    def launched(argv, **processes):
        started.append((argv, processes))
        return 0

    monkeypatch.setattr(command, "launch_local", launched)
    assert run(*MODELS, *options, "--nproc", "2", "--gpus", "0,1").exit_code == 0
    ((argv, processes),) = started
    assert processes == {"nproc": 2, "gpus": "0,1"}
    assert "secret" not in argv
    run(*argv)
    run(*MODELS, *options)
    of_rank, alone = asked
    assert of_rank == alone


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--out", "report.pdf"], "ends with .html"),
        (["--dtype", "int8"], "use one of bf16, fp16, fp32"),
        (["--judge-model", "m"], "a judge needs both"),
        (["--format-regex", "("], "no regular expression"),
        (["--judge-url", "http://h", "--judge-model", "m", "--judge-key-env", "NONE_SUCH"],
         "NONE_SUCH: this variable is not set"),
        (["--rows", "20"], "--rows: only with --runs A B"),
        (["--temperature", "0.7", "--top-p", "1"], "--temperature and --top-p: of drawn answers"),
        (["--beams", "2", "--repetition-penalty", "1.1"], "--repetition-penalty: of drawn answers"),
        (["--judge-key-env", "THE_KEY"], "--judge-key-env: a judge needs --judge-url and"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(asked, options, words):
    with pytest.raises(GlmForgeError, match=words):
        run(*MODELS, *options)
    assert asked == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--out", "report.html"], "--out: no part of --runs"),
        (["--base", "b", "--no-general", "--seeds", "0"], "--base and --general and --seeds: "),
        (["--rows", "9", "--json"], "--rows: --json has all steps"),
    ],
)
def test_options_that_do_nothing_beside_two_runs_are_refused(asked, tmp_path, options, words):
    """Also at their defaults, as who writes one expects it to do something."""
    with pytest.raises(UsageError, match=words):
        run("compare", "--runs", "a", "b", *options)
    assert list(tmp_path.iterdir()) == []


def test_a_refused_comparison_writes_nothing(monkeypatch, tmp_path):
    """Not even a folder: a model given twice is known without reading any."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="one of them is given twice"):
        run("compare", "--base", "b", "--tuned", "t", "--tuned", "t", "--prompts", "q.txt",
            "--out", "new/r.html")  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_compare_is_refused(asked):
    with pytest.raises(UsageError, match="compare what"):
        run("compare", "--base", "b")


def test_a_place_that_cannot_be_written_is_told_before_anything_is_asked(asked, tmp_path):
    """A file among the folders, a folder in place of the page."""
    (tmp_path / "file").touch()
    (tmp_path / "page.html").mkdir()
    for out, words in (("file/r.html", "cannot be made"), ("page.html", "give another place")):
        with pytest.raises(UsageError, match=words):
            run(*MODELS, "--out", str(tmp_path / out))
    assert asked == []
