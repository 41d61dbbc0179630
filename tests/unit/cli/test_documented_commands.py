"""Every command and config in the documentation is one that this program takes.

Nothing is run here: options are parsed and settings validated. The tests that run the recipe and
the tutorial (tests/e2e) are of the long tier.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
import yaml

from glmforge.cli.main import app
from glmforge.config import load_config_file

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
)
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
INLINE = re.compile(r"`(glmforge [^`]+)`")
JOINTS = {"|", "&&", "||", ";", "&", ">", "2>"}
OMITTED = {"...", "…"}
GROUP = typer.main.get_command(app)
# A config for commands whose page shows none.
PLAIN = "model: {model_name_or_path: m}\ndata: {train: t.jsonl}\ntraining: {output_dir: r}\n"


def page_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(page: Path, *kinds: str) -> list[str]:
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [text for kind, text in found if kind in kinds]


def commands_of(text: str) -> Iterator[list[str]]:
    """The words after `glmforge` of each command in a shell block."""
    for line in text.replace("\\\n", " ").splitlines():
        if "glmforge" not in line:
            continue
        words = shlex.split(re.sub(r"\$\([^)]*\)", "found", line), comments=True)
        while "glmforge" in words:
            words = words[words.index("glmforge") + 1 :]
            end = next((n for n, word in enumerate(words) if word in JOINTS), len(words))
            if end:
                yield words[:end]


def leaf(words: list[str]) -> tuple[typer.core.TyperCommand, list[str], list[str]]:
    """The command that the first words name, its name, and its arguments."""
    command, named = GROUP, []
    while hasattr(command, "commands") and words and words[0] in command.commands:
        command = command.commands[words[0]]
        named.append(words[0])
        words = words[1:]
    return command, named, words


def parse(words: list[str]) -> dict[str, object]:
    """What the program understands of a command line; the command itself is not run."""
    command, named, arguments = leaf(words)
    assert named or arguments[0].startswith("--"), f"no command: {words}"
    try:
        return dict(command.make_context(" ".join(named), list(arguments)).params)
    except typer.Exit:  # --version, --help-config
        return {}


def options_of(words: list[str]) -> set[str]:
    command, _, _ = leaf(words)
    return {name for option in command.params for name in (*option.opts, *option.secondary_opts)}


CASES = [
    pytest.param(page, words, id=f"{page_id(page)}: {' '.join(words)[:60]}")
    for page in PAGES
    for text in blocks(page, "sh", "bash")
    for words in commands_of(text)
]


def test_the_pages_have_commands() -> None:
    """The patterns above find what they look for."""
    assert len(CASES) > 100
    assert {page_id(case.values[0]) for case in CASES} >= {
        "README.md", "README.zh-CN.md", "docs/tutorial.md", "docs/zh/tutorial.md",
        "docs/recipe.md", "docs/launch.md", "docs/memory.md", "examples/README.md",
    }  # fmt: skip


@pytest.mark.parametrize(("page", "words"), CASES)
def test_a_command_of_a_page_is_understood(
    page: Path, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Command, options and their kinds; and every setting given on the line is one."""
    if OMITTED & set(words):
        named = {word for word in words if word.startswith("--")}
        assert named <= options_of(words)
        return
    params = parse(words)
    if overrides := params.get("overrides"):
        shown = [text for text in blocks(page, "yaml") if "model:" in text]
        config = tmp_path / "c.yaml"
        config.write_text(shown[0] if shown else PLAIN, encoding="utf-8")
        load_config_file(config, overrides)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_options_named_in_the_text_exist(page: Path) -> None:
    """`glmforge chat|serve MODEL --stress` in a sentence or a table."""
    for span in INLINE.findall(page.read_text(encoding="utf-8")):
        words = span.replace("\\|", "|").split()[1:]
        for name in words[0].split("|"):
            of = [name, *words[1:]]
            if leaf(of)[1]:
                given = {w.split("=")[0] for word in words for w in word.strip("[]").split("|")
                         if w.startswith("--")}  # fmt: skip
                assert given <= options_of(of), span


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_the_configs_of_a_page_are_valid(page: Path, tmp_path: Path) -> None:
    """Whole ones as they are; parts within a plain one."""
    for text in blocks(page, "yaml"):
        values = yaml.safe_load(text)
        config = tmp_path / "c.yaml"
        config.write_text(yaml.safe_dump(yaml.safe_load(PLAIN) | values), encoding="utf-8")
        found = load_config_file(config, [])
        assert all(getattr(found, section) is not None for section in values)


@pytest.mark.parametrize("name", ["tutorial.md", "recipe.md"])
def test_both_languages_have_the_same_commands(name: str) -> None:
    """What is tested in one is right in the other."""
    mine, theirs = (
        BLOCK.findall((ROOT / place / name).read_text(encoding="utf-8"))
        for place in ("docs", "docs/zh")
    )
    assert mine == theirs


def test_every_page_is_found_from_the_index() -> None:
    """docs/README.md names each page, and both READMEs lead to the tutorial."""
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")}
    assert [str(page) for page in sorted(pages) if f"({page})" not in index] == ["README.md"]
    first = {"README.md": "docs/tutorial.md", "README.zh-CN.md": "docs/zh/tutorial.md"}
    for readme, link in first.items():
        assert f"({link})" in (ROOT / readme).read_text(encoding="utf-8")


def test_the_links_of_a_page_lead_somewhere() -> None:
    """Files that exist, and headings within them."""
    lost = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            if target.startswith(("http:", "https:")):
                continue
            name, _, heading = target.partition("#")
            path = (page.parent / name) if name else page
            if not path.exists() or (heading and heading not in headings(path)):
                lost.append(f"{page_id(page)}: {target}")
    assert lost == []


def headings(path: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    found = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}


def test_the_plan_of_the_tutorial_is_that_of_the_real_model(
    shared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """15.6 of 24 GiB, as both languages say."""
    from glmforge.cli.main import main

    monkeypatch.chdir(tmp_path)
    (config,) = blocks(ROOT / "docs" / "tutorial.md", "yaml")
    Path("run.yaml").write_text(config, encoding="utf-8")
    (line,) = blocks(ROOT / "docs" / "tutorial.md", "json")
    Path("train.jsonl").write_text(line, encoding="utf-8")
    other = (
        '{"messages": [{"role": "user", "content": "问"}, {"role": "assistant", "content": "答"}]}'
    )
    Path("dev.jsonl").write_text(other, encoding="utf-8")
    Path("models").mkdir()
    (tmp_path / "models" / "chatglm3-6b").symlink_to(shared / "tokenizers" / "chatglm3-6b")
    command = ["glmforge", "plan", "run.yaml", "--gpus", "2", "--gpu-memory", "24"]
    monkeypatch.setattr("sys.argv", command)
    assert main() == 0
    assert "     15.64  = needed of 24 GiB: fits" in capsys.readouterr().out
    for page in ("docs/tutorial.md", "docs/zh/tutorial.md"):
        assert "15.6" in (ROOT / page).read_text(encoding="utf-8")
