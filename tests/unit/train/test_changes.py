"""What changed since a run began is shown with its effect, and refused unless it is allowed."""

import json

import pytest

from glmforge.config import config_from_mapping
from glmforge.errors import CheckpointError
from glmforge.plan.batch import BatchSizes
from glmforge.train.changes import (
    Present,
    all_changes,
    changed_settings,
    check_changes,
    note_changes,
    noted_changes,
)
from glmforge.train.rundir import write_run_files
from glmforge.train.schedule import rate_at

ENGINE = {"train_batch_size": 4, "zero_optimization": {"stage": 2}, "fp16": {"enabled": False}}
MANIFEST = {
    "hash": "a" * 64,
    "files": {"train": [{"path": "t.jsonl", "bytes": 3, "sha256": "c"}]},
    "examples": {"train": 3},
    "model": {"config.json": "2 bytes (aa)", "model.safetensors": "9 bytes (bb)"},
    "total_steps": 100,
}


def config(*, model="m", lora=None, **training):
    values = {
        "model": {"model_name_or_path": model},
        "data": {"train": "t.jsonl"},
        "training": {"output_dir": "r", **training},
    }
    return config_from_mapping(values | ({"lora": lora} if lora else {}))


@pytest.fixture
def run(tmp_path):
    return begin(tmp_path / "r", config())


def begin(directory, settings, manifest=MANIFEST):
    write_run_files(
        directory, config_yaml=settings.to_yaml(), deepspeed_config=ENGINE, manifest=manifest
    )
    return directory


def changes(run, settings, *, steps=100, done=40, engine=ENGINE, micro=4, **manifest):
    now = Present(
        config=settings,
        manifest=MANIFEST | {"total_steps": steps} | manifest,
        sizes=BatchSizes(micro_batch=micro, accumulation=1, world_size=1),
        engine_config=engine,
        total_steps=steps,
        step=done,
    )
    return all_changes(run, now)


def test_the_same_settings_pass_and_free_ones_may_differ(run):
    """How often it logs, saves and evaluates changes nothing that matters."""
    assert changes(run, config()) == []
    assert changes(run, config(logging_steps=3, save_steps=7, save_total_limit=9)) == []


def test_every_difference_is_named_with_both_values(run):
    """Settings and data at once; allowed, they pass."""
    found = changes(run, config(adam_beta2=0.95, seed=7), hash="b" * 64)
    with pytest.raises(CheckpointError) as caught:
        check_changes(run, found, allowed=False)
    text = str(caught.value)
    assert "training.adam_beta2 was 0.999 when the run began and is 0.95 now" in text
    assert "training.seed was 42" in text
    assert "data, tokenizer or template was" in text
    assert "--allow-changes" in text
    check_changes(run, found, allowed=True)


def test_twice_the_steps_show_the_jump_of_the_learning_rate(shared, tmp_path):
    """Case R05: 100 -> 200 steps, and 7.347e-05 -> 9.357e-05 once 41 steps are done."""
    case = json.loads((shared / "cases" / "R05" / "schedule.json").read_text())
    schedule = {
        "lr_scheduler_type": case["schedule"],
        "learning_rate": case["peak_lr"],
        "warmup_steps": case["warmup_steps"],
    }
    before = config(**schedule, max_steps=case["total_steps"])
    table = {5: 5e-05, 10: 1e-04, 40: 7.5e-05, 41: 7.347358e-05, 60: 4.131759e-05, 99: 3.045865e-08}
    for done, rate in table.items():
        assert rate_at(before.training, 100, done) == pytest.approx(rate, rel=1e-6)
    run = begin(tmp_path / "r", before)
    found = changes(run, config(**schedule, max_steps=200), steps=200, done=case["stop_after_step"])
    text = "\n".join(change.sentence() for change in found)
    assert "training.max_steps was 100 when the run began and is 200 now" in text
    assert "100 -> 200 steps" in text
    assert "after 40 steps 7.500e-05 -> 9.397e-05" in text
    assert "after 41 steps 7.347e-05 -> 9.357e-05" in text
    with pytest.raises(CheckpointError, match="--allow-changes"):
        check_changes(run, found, allowed=False)
    check_changes(run, found, allowed=True)


@pytest.mark.parametrize(
    ("settings", "engine", "name"),
    [
        (config(lora={"r": 4}), ENGINE, "lora.r"),
        (config(precision="bf16"), ENGINE, "training.precision"),
        (
            config(),
            ENGINE | {"zero_optimization": {"stage": 3}},
            "deepspeed.zero_optimization.stage was 2 when the run began and is 3",
        ),
    ],
)
def test_what_a_checkpoint_cannot_carry_is_refused_always(run, settings, engine, name):
    """With the way that there is: another run on its weights."""
    found = changes(run, settings, engine=engine)
    with pytest.raises(CheckpointError) as caught:
        check_changes(run, found, allowed=True)
    assert name in str(caught.value)
    assert "start another run " in str(caught.value)


def test_a_model_that_only_moved_is_the_same_model(run):
    """Another path with the same files is no change; other files under the same path are one."""
    assert changes(run, config(model="elsewhere")) == []
    other = MANIFEST["model"] | {"model.safetensors": "9 bytes (cc)"}
    (found,) = changes(run, config(), model=other)
    assert "model.safetensors 9 bytes (bb)" in found.before
    assert len(changes(run, config(model="elsewhere"), model=other)) == 2


def test_another_number_of_rows_a_step_says_what_to_set(run):
    """The order of the data depends on it."""
    (found,) = changes(run, config(), micro=2)
    assert "write training.gradient_accumulation_steps=2" in found.sentence()


def test_a_run_older_than_a_setting_can_go_on(run):
    """A key that its config.yaml does not have counts as the default."""
    path = run / "config.yaml"
    lines = [line for line in path.read_text().splitlines() if "adam_beta2" not in line]
    path.write_text("\n".join(lines))
    assert changed_settings(run, config()) == []
    assert changed_settings(run, config(adam_beta2=0.95))[0].before == "0.999"


def test_allowed_changes_are_noted_in_the_run_directory(run):
    """A line each, with the step after which it holds."""
    note_changes(run, changes(run, config(seed=7)), 40)
    note_changes(run, changes(run, config(seed=8)), 60)
    rows = [json.loads(line) for line in (run / "changes.jsonl").read_text().splitlines()]
    assert [(row["after_step"], row["what"], row["after"]) for row in rows] == [
        (40, "training.seed", "7"),
        (60, "training.seed", "8"),
    ]


def with_parts(train, validation=None):
    """A manifest with a hash for each part, as this version writes it."""
    hashes = {"train": train, **({"validation": validation} if validation else {})}
    counts = dict.fromkeys(hashes, 3)
    return MANIFEST | {"hash": train + str(validation), "hashes": hashes, "examples": counts}


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (with_parts("a" * 64, "b" * 64), []),
        (with_parts("a" * 64, "c" * 64), ["the validation data"]),
        (with_parts("c" * 64, "b" * 64), ["the training data, tokenizer or template"]),
        (
            with_parts("c" * 64, "d" * 64),
            ["the validation data", "the training data, tokenizer or template"],
        ),
        (with_parts("a" * 64), ["the validation data"]),
    ],
)
def test_training_and_validation_rows_are_compared_each_by_its_own_hash(tmp_path, now, expected):
    """Another validation file accuses neither the training data nor the tokenizer."""
    run = begin(tmp_path / "r", config(), with_parts("a" * 64, "b" * 64))
    found = changes(run, config(), **now)
    assert [change.what for change in found] == expected
    assert all("(hash" in change.before for change in found)


def test_a_run_older_than_the_hashes_of_the_parts_is_compared_by_what_it_has(run):
    """Validation by its files' bytes, wherever they lie; the rest by the hash of everything."""
    now = with_parts("a" * 64, "d" * 64)
    files = {"validation": [{"path": "v.jsonl", "bytes": 3, "sha256": "d"}]}
    same = now | {"hash": MANIFEST["hash"]}
    (found,) = changes(run, config(), **same | {"files": MANIFEST["files"] | files})
    assert found.what == "the validation data"
    assert (found.before, found.after) == ("absent", "1 file(s) (sha256 d)")
    assert "not comparable" in found.effect
    moved = {"train": [{"path": "/x/t.jsonl", "bytes": 3, "sha256": "c"}]}
    assert changes(run, config(), **same | {"files": moved}) == []
    (found,) = changes(run, config(), **now)
    assert found.what == "the training data, tokenizer or template"


def test_another_rate_over_as_many_steps_is_shown_as_a_rate(run):
    """The number of steps is not what differs."""
    settings = config(learning_rate=1e-4)
    (rate,) = [c for c in changes(run, settings, done=40) if not c.what.startswith("training.")]
    old, new = (rate_at(each.training, 100, 40) for each in (config(), settings))
    assert rate.sentence().startswith(
        f"the learning rate after 40 steps was {old:.3e} when the run began and is {new:.3e} now"
    )
    assert "after 41 steps" in rate.effect
    assert "100 steps as before" in rate.effect


def test_a_change_that_was_allowed_at_the_same_step_is_known_and_noted_once(run):
    """The run was killed before its next checkpoint: it goes on from the same one again."""
    assert noted_changes(run, 40) == set()
    found = changes(run, config(seed=7))
    note_changes(run, found, 40)
    note_changes(run, found, 40)
    with open(run / "changes.jsonl", "a") as file:
        file.write('{"torn')
    assert noted_changes(run, 40) == {("training.seed", "7")}
    assert noted_changes(run, 60) == set()
    assert len((run / "changes.jsonl").read_text().splitlines()) == 2


def test_another_rank_is_pointed_at_the_exported_weights_and_another_optimizer_is_not(run):
    """--init-from takes an adapter of the same rank only: it would be refused in its turn."""
    step = run / "checkpoints/step-000040"
    with pytest.raises(CheckpointError) as caught:
        check_changes(run, changes(run, config(lora={"r": 4})), allowed=True, checkpoint=step)
    assert f"glmforge export {step} OUT --merge, then model.model_name" in str(caught.value)
    found = changes(run, config(optim="adamw_bnb_8bit"))
    with pytest.raises(CheckpointError) as caught:
        check_changes(run, found, allowed=True, checkpoint=step)
    assert f"with --init-from {step}" in str(caught.value)


def test_data_that_only_moved_are_the_same_data(tmp_path):
    """The rows are compared by their hash; at another place they are no change."""
    manifest = MANIFEST | {"hashes": {"train": "d" * 64}}
    run = begin(tmp_path / "moved", config(), manifest)
    moved = config_from_mapping(
        {
            "model": {"model_name_or_path": "m"},
            "data": {"train": "elsewhere/t.jsonl"},
            "training": {"output_dir": "r"},
        }
    )
    assert changes(run, moved, hashes={"train": "d" * 64}) == []
    found = changes(run, moved, hashes={"train": "e" * 64})
    assert {change.what for change in found} >= {"data.train"}
