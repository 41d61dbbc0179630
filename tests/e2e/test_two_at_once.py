"""A job that starts again while it still runs: the second one is refused, the first goes on."""

import signal


def test_a_second_start_of_a_running_run_changes_nothing(project, wait_for):
    """As a requeued job does, on two processes each."""
    project.settings["training"] |= {"max_steps": 100_000, "save_steps": 5, "logging_steps": 1}
    project.write()
    command = ("glmforge", "train", "c.yaml", "--nproc", "2", "--resume", "auto")
    first = project.start(*command)
    run = project.directory / "run"
    try:
        wait_for(lambda: any(run.glob("checkpoints/step-*")) and project.steps(), 120)
        second = project.run(*command)
        assert second.returncode == 1, second.stderr[-3000:]
        assert "run: a run is going on in it (process " in second.stderr
        assert not (run / "final.json").exists()
        first.send_signal(signal.SIGINT)
        _, said = first.communicate(timeout=120)
    finally:
        first.kill()
    assert first.returncode == 75, said[-3000:]
