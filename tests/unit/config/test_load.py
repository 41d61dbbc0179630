"""Reading a run config: what is accepted, and one message for each fault, all at once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from glmforge.config import RunConfig, config_from_mapping, load_config_file
from glmforge.errors import ConfigError

GOOD = """\
model:
  model_name_or_path: models/glm
data:
  train: train.jsonl
training:
  output_dir: run
"""

Problems = Callable[..., list[str]]
Write = Callable[[str], Path]


def test_a_small_config_gets_the_fixed_defaults(write: Write) -> None:
    config = load_config_file(write(GOOD), [])
    assert config.method == "lora"
    assert (config.lora.r, config.lora.lora_alpha, config.lora.lora_dropout) == (8, 32, 0.1)
    assert config.data.max_length == 2048
    assert config.training.learning_rate == 5e-5
    assert config.training.warmup_ratio == 0.03
    assert config.training.gradient_accumulation_steps == "auto"


def test_a_config_cannot_be_changed(write: Write) -> None:
    config = load_config_file(write(GOOD), [])
    with pytest.raises(ValueError, match="frozen"):
        config.training.seed = 1  # type: ignore[misc]


@pytest.mark.parametrize("text", ["1e-4", "1E-4", "1.0e-4", "0.0001", ".0001", "+1e-4"])
def test_every_way_to_write_a_number_is_a_number(write: Write, text: str) -> None:
    """YAML 1.1 reads 1e-4 as text."""
    config = load_config_file(write(GOOD + f"  learning_rate: {text}\n"), [])
    assert config.training.learning_rate == 1e-4
    assert load_config_file(write(GOOD), [f"training.learning_rate={text}"]) == config


def test_texts_that_yaml_1_1_would_turn_into_other_things_stay_texts(write: Write) -> None:
    config = load_config_file(write(GOOD.replace("run", "2024-01-01")), [])
    assert config.training.output_dir == "2024-01-01"
    config = load_config_file(write(GOOD.replace("output_dir: run", "output_dir: 12:30:00")), [])
    assert config.training.output_dir == "12:30:00"
    config = load_config_file(write(GOOD.replace("output_dir: run", "output_dir: 010")), [])
    assert config.training.output_dir == "010"


def test_overrides_are_typed_and_the_last_one_wins(write: Write) -> None:
    overrides = [
        "training.seed=7",
        "training.seed=8",
        "data.packing=false",
        "data.train=[a.jsonl, b.jsonl]",
        "lora.target_modules=[query_key_value, dense]",
        "launch.gpus=0",
        "training.output_dir=runs/a=b",
    ]
    config = load_config_file(write(GOOD), overrides)
    assert config.training.seed == 8
    assert config.data.packing is False
    assert config.data.train == ["a.jsonl", "b.jsonl"]
    assert config.lora.target_modules == ["query_key_value", "dense"]
    assert config.launch.gpus == "0"
    assert config.training.output_dir == "runs/a=b"


def test_deep_keys_of_deepspeed_can_be_overridden(write: Write, tmp_path: Path) -> None:
    override = "deepspeed.zero_optimization.stage=3"
    expected = {"zero_optimization": {"stage": 3}}
    assert load_config_file(write(GOOD), [override]).deepspeed == expected
    in_yaml = GOOD + "deepspeed:\n  zero_optimization: {stage: 2, overlap_comm: true}\n"
    assert load_config_file(write(in_yaml), [override]).deepspeed == {
        "zero_optimization": {"stage": 3, "overlap_comm": True}
    }
    file = tmp_path / "ds.json"
    file.write_text('{"zero_optimization": {"stage": 1}, "steps_per_print": 5}')
    config = load_config_file(write(GOOD), [f"deepspeed={file}", override])
    assert config.deepspeed == {**expected, "steps_per_print": 5}


def test_null_takes_a_setting_or_a_section_back(write: Write) -> None:
    text = GOOD + "  seed: 5\nlora:\n  r: 4\n"
    config = load_config_file(write(text), ["training.seed=null", "lora=null", "method=full"])
    assert config == load_config_file(write(GOOD), ["method=full"])


def test_an_override_of_one_of_two_alternatives_replaces_the_other(write: Write) -> None:
    text = GOOD + "  num_train_epochs: 5\n  warmup_steps: 10\n"
    config = load_config_file(write(text), ["training.max_steps=20", "training.warmup_ratio=0.1"])
    assert config.training.max_steps == 20
    assert (config.training.warmup_steps, config.training.warmup_ratio) == (None, 0.1)


def test_an_unknown_key_names_its_line_and_the_nearest_key(problems: Problems) -> None:
    assert problems(GOOD + "  leraning_rate: 1e-4\n") == [
        "c.yaml:7: unknown key training.leraning_rate, did you mean learning_rate?"
    ]
    assert problems(GOOD + "  Learning-Rate: 1e-4\n") == [
        "c.yaml:7: unknown key training.Learning-Rate, did you mean learning_rate?"
    ]


def test_a_key_in_the_wrong_section_is_told_where_it_belongs(problems: Problems) -> None:
    assert problems(GOOD + "seed: 3\n") == [
        "c.yaml:7: unknown key seed, did you mean training.seed?"
    ]
    assert problems(GOOD + "  max_length: 64\n") == [
        "c.yaml:7: unknown key training.max_length, did you mean data.max_length?"
    ]
    assert problems(GOOD + "modle:\n  x: 1\n") == [
        "c.yaml:7: unknown key modle, did you mean model?"
    ]


def test_an_unknown_key_near_to_nothing_lists_the_known_ones(problems: Problems) -> None:
    (problem,) = problems(GOOD, "lora.zzz=1")
    assert problem == (
        "command line: unknown key lora.zzz, known here: r, lora_alpha, lora_dropout, "
        "target_modules, use_rslora, use_dora, loraplus_lr_ratio"
    )


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("training.seed=abc", "training.seed is 'abc' (a text): expected a whole number ≥ 0"),
        ("training.seed=1.5", "training.seed is 1.5 (a number): expected a whole number ≥ 0"),
        ("training.seed=true", "training.seed is true (true/false): expected a whole number"),
        ("training.learning_rate=-1", "training.learning_rate is -1 (a whole number): expected a"),
        ("training.learning_rate=.nan", "training.learning_rate is nan (a number): expected a num"),
        ("training.learning_rate='1e-4'", "training.learning_rate is '1e-4' (a text): expected a"),
        ("data.packing=1", "data.packing is 1 (a whole number): expected true or false"),
        ("data.train=3", "data.train is 3 (a whole number): expected a text, or a map {path, wei"),
        ("data.train=[]", "data.train is [] (a list): expected a text, or a map {path, weight >"),
        ("data.train=[{path: a, wieght: 2}]", "data.train is [{'path': 'a', 'wieght': 2}] (a lis"),
        ("data.train={path: a, weight: 0}", "data.train is {'path': 'a', 'weight': 0} (a map): ex"),
        ("data.validation_size=1.0", "data.validation_size is 1.0 (a number): expected a whole n"),
        ("data.validation_size=0", "data.validation_size is 0 (a whole number): expected a whole"),
        ("data.repair=[mend]", "data.repair is ['mend'] (a list): expected a list of one of merg"),
        ("data.truncation=cut", "data.truncation is 'cut' (a text): expected one of drop_last_tu"),
        (
            "data.train=[a, 3]",
            "data.train is ['a', 3] (a list): expected a text, or a map {path, weight > 0}, or",
        ),
        (
            "lora.target_modules=[8]",
            "lora.target_modules is [8] (a list): expected a non-empty list of",
        ),
        (
            "method=qlroa",
            "method is 'qlroa' (a text): expected one of lora, qlora, freeze, full, did you mean "
            "qlora?",
        ),
        ("training.precision=int8", "training.precision is 'int8' (a text): expected one of auto"),
        ("deepspeed=[1]", "deepspeed is [1] (a list): expected a map, or a text, or null"),
        ("training=5", "training is 5 (a whole number): expected a map of settings"),
        ("launch.master_port=70000", "launch.master_port is 70000 (a whole number): expected a"),
    ],
)
def test_a_wrong_type_shows_the_value_and_what_is_expected(
    problems: Problems, override: str, expected: str
) -> None:
    found = problems(GOOD, override)
    assert len(found) == 1, found
    assert found[0].startswith(f"command line: {expected}")


def test_a_missing_required_setting_is_named_with_its_meaning(problems: Problems) -> None:
    found = problems("model:\n  model_name_or_path: m\n")
    assert found == [
        "c.yaml: data.train is missing: Training dialogues: files, directories or hub names, each "
        "alone or as {path, weight}.",
        "c.yaml: training.output_dir is missing: Run directory, made by the run.",
    ]


def test_several_faults_are_reported_at_once(problems: Problems) -> None:
    text = GOOD + "  leraning_rate: 1\n  seed: x\n  seed: y\nlora: {r: 0}\nmethod: full\n"
    found = problems(text, "training.max_steps=two", "nonsense", "data.train=[x")
    assert len(found) == 7
    assert "training.seed is written twice (first on line 8); keep one" in found[0]
    assert found[1] == "command line: 'nonsense' is not of the form section.key=value"
    assert found[2].startswith("command line: 'data.train=[x' is not valid YAML")
    assert "leraning_rate" in found[3]
    assert {problem.split(" is ")[0] for problem in found[4:]} == {
        "c.yaml:10: lora.r",
        "command line: training.max_steps",
        "c.yaml:9: training.seed",
    }


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("method: full\nlora: {r: 4}\n", "c.yaml:8: lora.r has no effect: method is full"),
        (
            "generation: {references: [a]}\n",
            "c.yaml:7: generation.references has no effect: they answer generation.prompts",
        ),
        (
            "  early_stopping_patience: 3\n",
            "c.yaml:7: training.early_stopping_patience has no effect: nothing is evaluated",
        ),
        (
            "  decay_steps: 3\n",
            "c.yaml:7: training.decay_steps has no effect: training.lr_scheduler_type is linear",
        ),
        (
            "  gradient_checkpointing: 0\n",
            "c.yaml:7: training.gradient_checkpointing is 0 (a whole number): expected true or "
            "false, or a whole number ≥ 1",
        ),
        (
            "freeze: {num_trainable_layers: 3}\n",
            "c.yaml:7: freeze.num_trainable_layers has no effect: method is lora, not freeze",
        ),
        (
            "method: freeze\nlora: {r: 4}\n",
            "c.yaml:8: lora.r has no effect: method is freeze, which trains no adapter",
        ),
        (
            "lora: {r: 1, use_rslora: true}\n",
            "c.yaml:7: lora.use_rslora has no effect: lora.r is 1",
        ),
        (
            "lora: {loraplus_lr_ratio: 1}\n",
            "c.yaml:7: lora.loraplus_lr_ratio is 1 (a whole number): expected a number > 1, or",
        ),
        ("  max_steps: 5\n  num_train_epochs: 2\n", "c.yaml:8: training.num_train_epochs has no"),
        ("  warmup_steps: 0\n  warmup_ratio: 0.1\n", "c.yaml:8: training.warmup_ratio has no eff"),
        ("  eval_steps: 5\n", "c.yaml:7: training.eval_steps has no effect: neither data.valid"),
        ("launch: {master_port: 29500}\n", "c.yaml:7: launch.master_port has no effect: one pro"),
        ("generation: {num_prompts: 2}\n", "c.yaml:7: generation.num_prompts has no effect"),
        (
            "  eval_steps: 5\ngeneration: {prompts: [a], num_prompts: 2}\n",
            "c.yaml:8: generation.num_prompts has no effect: neither data.validation nor",
        ),
    ],
)
def test_a_setting_that_would_do_nothing_is_a_fault(
    problems: Problems, lines: str, problem: str
) -> None:
    found = problems(GOOD + lines)
    assert len(found) == 1, found
    assert found[0].startswith(problem)


FULL_FILE = (
    GOOD.replace("train: train.jsonl", "train: train.jsonl\n  validation: v.jsonl")
    + "  eval_steps: 5\n  per_device_eval_batch_size: 4\n  early_stopping_patience: 2\n"
    + "lora: {r: 4}\ngeneration: {num_prompts: 2, max_new_tokens: 16}\n"
)


@pytest.mark.parametrize(
    "overrides",
    [
        ["method=full"],
        ["method=freeze", "freeze.num_trainable_layers=1"],
        ["data.validation=null"],
        ["data.validation=null", "method=full"],
        ["generation.prompts=[a]"],
    ],
)
def test_what_the_command_line_leaves_without_effect_needs_no_further_edits(
    write: Write, overrides: list[str]
) -> None:
    config = load_config_file(write(FULL_FILE), overrides)
    assert load_config_file(write(config.to_yaml()), []) == config


def test_a_setting_of_the_command_line_without_effect_is_still_a_fault(problems: Problems) -> None:
    (problem,) = problems(FULL_FILE, "method=full", "lora.r=8")
    assert problem.startswith("command line: lora.r has no effect: method is full")


def test_a_fault_of_the_file_stays_one_whatever_the_command_line_says(problems: Problems) -> None:
    (problem,) = problems(GOOD + "method: full\nlora: {r: 4}\n", "training.seed=7")
    assert problem.startswith("c.yaml:8: lora.r has no effect: method is full")


def test_answers_to_other_prompts_go_with_their_prompts(write: Write) -> None:
    text = GOOD + "generation: {prompts: [a, b], references: [c, d]}\n"
    config = load_config_file(write(text), ["generation.prompts=[x]"])
    assert (config.generation.prompts, config.generation.references) == (["x"], None)


def test_a_measure_of_the_steps_needs_no_evaluation(write: Write, problems: Problems) -> None:
    text = GOOD + "  metric_for_best_model: loss\n  early_stopping_patience: 2\n  eval_steps: 5\n"
    config = load_config_file(write(text), [])
    assert config.training.metric_for_best_model == "loss"
    assert load_config_file(write(config.to_yaml()), []) == config
    (problem,) = problems(GOOD + "  metric_for_best_model: eval_loss\n")
    assert "a measure of the steps, such as training.metric_for_best_model: loss" in problem


def test_adapters_on_random_weights_are_refused(problems: Problems) -> None:
    (problem,) = problems(GOOD, "model.from_scratch=true")
    assert problem.startswith("command line: model.from_scratch is true with method lora")


def test_yaml_that_cannot_be_read_names_the_line(problems: Problems) -> None:
    assert problems("model: {a: 1\ndata: b: c\n")[0].startswith("c.yaml:2: not valid YAML")
    assert problems("- 1\n- 2\n") == ["c.yaml: expected a map of settings, found [1, 2] (a list)"]
    assert len(problems("")) == 3, "an empty file lacks the three required settings"
    assert "an anchor contains itself" in problems(GOOD + "deepspeed: &a\n  b: *a\n")[0]


def test_anchors_and_merge_keys_work(write: Write) -> None:
    text = GOOD + "deepspeed:\n  a: &a {k: 1, l: 2}\n  b:\n    <<: *a\n    l: 3\n"
    assert load_config_file(write(text), []).deepspeed["b"] == {"k": 1, "l": 3}


def test_a_config_file_that_is_not_there_or_not_text_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nope\.yaml' does not exist"):
        load_config_file(tmp_path / "nope.yaml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config_file(tmp_path)
    (tmp_path / "b.yaml").write_bytes(b"model: \xff\xfe\n")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load_config_file(tmp_path / "b.yaml")


def test_a_mapping_is_checked_like_a_file_and_left_as_it_was() -> None:
    mapping = {"model": {"model_name_or_path": "m"}, "data": {"train": "t"}, "training": {}}
    with pytest.raises(ConfigError, match=r"^config: training.output_dir is missing"):
        config_from_mapping(mapping)
    config = config_from_mapping(mapping, ["training.output_dir=r"])
    assert config.training.output_dir == "r"
    assert mapping["training"] == {}


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["method=full", "training.max_steps=9", "training.warmup_steps=3"],
        ["training.output_dir='1e-4'", "data.validation=[v.jsonl]", "training.eval_steps=5"],
        ["generation.prompts=['yes', '1e5', 'null', '你好']", "training.learning_rate=1e-5"],
        ["deepspeed.zero_optimization.stage=3", "launch.nproc=2", "launch.master_port=29500"],
        ["deepspeed=ds.json", "launch.gpus='0,1'", "training.gradient_accumulation_steps=4"],
    ],
)
def test_a_written_config_reads_back_equal(write: Write, overrides: list[str]) -> None:
    config = load_config_file(write(GOOD), overrides)
    again = load_config_file(write(config.to_yaml()), [])
    assert again == config
    assert again.to_yaml() == config.to_yaml()


def test_a_tilde_in_a_path_is_the_home_directory(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    config: RunConfig = load_config_file(write(GOOD), ["training.output_dir=~/run"])
    assert config.training.output_dir == "/home/someone/run"


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (
            "  metric_for_best_model: eval_rouge_l\ngeneration: {prompts: [a]}\n",
            "c.yaml:7: training.metric_for_best_model is eval_rouge_l, which this run does not",
        ),
        (
            "  early_stopping_patience: 2\ngeneration: {prompts: [a], references: [b]}\n",
            "c.yaml:5: training.metric_for_best_model is eval_loss, which this run does not",
        ),
        (
            "generation: {prompts: [a, b], references: [c]}\n",
            "c.yaml:7: generation.references has 1 answer(s) for 2 generation.prompts",
        ),
    ],
)
def test_a_measure_that_a_run_does_not_have_cannot_choose_its_best(
    problems: Problems, lines: str, problem: str
) -> None:
    """Loss needs validation data, nearness needs references."""
    (found,) = problems(GOOD + lines)
    assert found.startswith(problem)


def test_references_make_a_measure(write: Write) -> None:
    lines = "  metric_for_best_model: eval_rouge_l\n  early_stopping_patience: 2\n"
    text = GOOD + lines + "generation: {prompts: [a], references: [b]}\n"
    config = load_config_file(write(text))
    assert config.training.metric_for_best_model == "eval_rouge_l"
    assert load_config_file(write(config.to_yaml())) == config
