"""After `import glmforge`, transformers' Auto classes open ChatGLM and run none of its files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoProcessor,
    AutoTokenizer,
)
from transformers.models.auto import modeling_auto
from vocabularies import write_bpe, write_unigram

AUTO_MODELS = [AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM]
EVIL = "raise SystemExit('the code of the checkpoint was run')\n"


OTHER_AUTO_MODELS = sorted(
    name
    for name, value in vars(modeling_auto).items()
    if name.startswith("AutoModel") and value not in AUTO_MODELS and isinstance(value, type)
)


@pytest.fixture(params=["chatglm3", "chatglm"])
def checkpoint(tiny_model, tmp_path: Path, request) -> Path:
    """A saved model whose config.json names remote code, with that code beside it."""
    directory = tmp_path / "with-code"
    tiny_model(request.param).save_pretrained(directory)
    path = directory / "config.json"
    keys = json.loads(path.read_text(encoding="utf-8"))
    model_class = "modeling_chatglm.ChatGLMForConditionalGeneration"
    keys["auto_map"] = {
        "AutoConfig": "configuration_chatglm.ChatGLMConfig",
        "AutoModel": model_class,
        "AutoModelForCausalLM": model_class,
        "AutoModelForSeq2SeqLM": model_class,
        **dict.fromkeys(OTHER_AUTO_MODELS, model_class),
        "AutoProcessor": "processing_chatglm.ChatGLMProcessor",
    }
    keys["custom_pipelines"] = {"chat": {"impl": "pipeline_chatglm.Chat", "pt": ["AutoModel"]}}
    path.write_text(json.dumps(keys), encoding="utf-8")
    for name in ("configuration", "modeling", "processing", "pipeline", "tokenization"):
        (directory / f"{name}_chatglm.py").write_text(EVIL, encoding="utf-8")
    (directory / "custom_generate").mkdir()
    (directory / "custom_generate" / "generate.py").write_text(EVIL, encoding="utf-8")
    return directory


@pytest.mark.parametrize("auto_class", AUTO_MODELS)
@pytest.mark.parametrize("trust", [None, False, True])
def test_every_auto_class_gives_our_model_with_its_head(checkpoint, auto_class, trust):
    model = auto_class.from_pretrained(checkpoint, trust_remote_code=trust)
    assert type(model).__module__.startswith("glmforge.models.")
    assert model.get_output_embeddings() is not None
    assert model.generate.__func__ is type(model).generate


@pytest.mark.parametrize("name", OTHER_AUTO_MODELS)
def test_an_auto_class_that_has_no_model_of_ours_says_so(checkpoint, name):
    """The hub's auto_map also names AutoModelForSequenceClassification."""
    with pytest.raises(ValueError, match="Unrecognized configuration class"):
        getattr(modeling_auto, name).from_pretrained(checkpoint, trust_remote_code=True)


def test_tokenizer_and_processor_are_the_tokenizer_of_ours(checkpoint):
    keys = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    is_first = "inner_hidden_size" in keys
    (write_unigram if is_first else write_bpe)(checkpoint)
    for auto_class in (AutoTokenizer, AutoProcessor):
        opened = auto_class.from_pretrained(checkpoint, trust_remote_code=True)
        assert type(opened).__module__.startswith("glmforge.models.")
        assert opened.family == ("chatglm" if is_first else "chatglm3")


def test_the_configuration_is_ours_even_where_remote_code_is_trusted(checkpoint, tmp_path):
    """It shows no name of a code file to transformers, and writes all of them back."""
    config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=True)
    assert type(config).__module__.startswith("glmforge.models.")
    assert not hasattr(config, "auto_map")
    assert not hasattr(config, "custom_pipelines")
    config.save_pretrained(tmp_path / "again")
    first, again = (
        json.loads((directory / "config.json").read_text(encoding="utf-8"))
        for directory in (checkpoint, tmp_path / "again")
    )
    assert first["auto_map"] == again["auto_map"]
    assert first["custom_pipelines"] == again["custom_pipelines"]


def test_importing_the_package_is_all_that_is_needed(checkpoint, warm_python):
    program = (
        "import glmforge, sys; from transformers import AutoModelForCausalLM\n"
        "print(type(AutoModelForCausalLM.from_pretrained(sys.argv[1])).__module__)"
    )
    done = warm_python.run([sys.executable, "-c", program, str(checkpoint)], check=True)
    assert done.stdout.strip().startswith("glmforge.models.")


def test_a_script_whose_arguments_look_like_our_command_is_a_script(
    checkpoint, tmp_path, warm_python
):
    script = tmp_path / "script.py"
    script.write_text(
        "import glmforge, sys; from transformers import AutoConfig\n"
        "print(type(AutoConfig.from_pretrained(sys.argv[1])).__module__)",
        encoding="utf-8",
    )
    words = [sys.executable, str(script), str(checkpoint), "-m", "glmforge"]
    done = warm_python.run(words, check=True)
    assert done.stdout.strip().startswith("glmforge.models.")


def test_our_own_command_answers_without_transformers():
    words = [sys.executable, "-X", "importtime", "-m", "glmforge", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "Usage" in done.stdout
    assert not [line for line in done.stderr.splitlines() if line.endswith(" transformers")]


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
