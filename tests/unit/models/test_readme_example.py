"""The README's lines that open a ChatGLM folder do so, on a small one in its place."""

import re

import pytest


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_the_lines_in_the_readme_open_a_folder(root, page, tiny_model, tmp_path, monkeypatch):
    """As they stand there, in both languages; a .py file in the folder is not run."""
    directory = tmp_path / "models" / "chatglm3-6b"
    tiny_model("chatglm3").save_pretrained(directory)
    (directory / "modeling_chatglm.py").write_text("raise SystemExit('this code was run')\n")
    text = (root / page).read_text(encoding="utf-8")
    lines = next(
        block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "AutoModel" in block
    )
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(lines, names)
    assert names["model"].config.family == "chatglm3"
    assert len([line for line in lines.splitlines() if line]) == 3
