"""Preparing data as a user's script does: several processes, no main guard, killed and gone on."""

import json

import pytest
from e2e_project import Project

SCRIPT = """
import functools, sys
from glmforge.data import preparing
from glmforge.models import load_tokenizer
preparing._UNIT_BYTES = 4096
found = preparing.prepare(
    "long.jsonl", functools.partial(load_tokenizer, sys.argv[1]), "sets",
    preparing.PrepareSettings(max_length=64), workers=2,
)
print(len(found), found.hash)
"""


@pytest.mark.slow
def test_a_script_without_a_main_guard_prepares_with_several_processes(
    project: Project, tiny_model: object
) -> None:
    rows = [
        {"prompt": f"question {number}", "response": f"parcel {number} arrives"}
        for number in range(900)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (project.directory / "long.jsonl").write_text(text, encoding="utf-8")
    (project.directory / "script.py").write_text(SCRIPT, encoding="utf-8")
    done = project.run("python", "script.py", str(tiny_model))
    assert done.returncode == 0, done.stderr
    number, first = done.stdout.split()
    assert number == "900"
    alone = SCRIPT.replace("workers=2", "workers=1").replace('"sets"', '"other"')
    (project.directory / "script.py").write_text(alone, encoding="utf-8")
    again = project.run("python", "script.py", str(tiny_model))
    assert again.stdout.split() == ["900", first]
