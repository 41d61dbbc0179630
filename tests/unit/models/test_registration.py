"""After `import glmforge`, transformers' Auto classes open ChatGLM and run none of its files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM

AUTO_MODELS = [AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM]
EVIL = "raise SystemExit('the code of the checkpoint was run')\n"


@pytest.fixture
def checkpoint(tiny_model, tmp_path: Path) -> Path:
    """A saved model whose config.json names remote code, with that code beside it."""
    directory = tmp_path / "with-code"
    tiny_model("chatglm3").save_pretrained(directory)
    path = directory / "config.json"
    keys = json.loads(path.read_text(encoding="utf-8"))
    model_class = "modeling_chatglm.ChatGLMForConditionalGeneration"
    keys["auto_map"] = {
        "AutoConfig": "configuration_chatglm.ChatGLMConfig",
        "AutoModel": model_class,
        "AutoModelForCausalLM": model_class,
        "AutoModelForSeq2SeqLM": model_class,
    }
    path.write_text(json.dumps(keys), encoding="utf-8")
    for name in ("configuration_chatglm.py", "modeling_chatglm.py"):
        (directory / name).write_text(EVIL, encoding="utf-8")
    return directory


@pytest.mark.parametrize("auto_class", AUTO_MODELS)
@pytest.mark.parametrize("trust", [None, False, True])
def test_every_auto_class_gives_our_model_with_its_head(checkpoint, auto_class, trust):
    model = auto_class.from_pretrained(checkpoint, trust_remote_code=trust)
    assert type(model).__module__ == "glmforge.models.glm.modeling"
    assert model.get_output_embeddings() is not None


def test_the_configuration_is_ours_even_where_remote_code_is_trusted(checkpoint):
    config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=True)
    assert type(config).__module__ == "glmforge.models.glm.configuration"
    assert config.auto_map["AutoConfig"] == "configuration_chatglm.ChatGLMConfig"


def test_importing_the_package_is_all_that_is_needed(checkpoint):
    program = (
        "import glmforge, sys; from transformers import AutoModelForCausalLM\n"
        "print(type(AutoModelForCausalLM.from_pretrained(sys.argv[1])).__module__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(checkpoint)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "glmforge.models.glm.modeling"


def test_the_family_table_needs_neither_torch_nor_transformers():
    program = (
        "import sys; sys.argv[0] = 'glmforge'\n"
        "import glmforge.models.families\n"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
