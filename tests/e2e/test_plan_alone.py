"""`glmforge plan` as a program of its own, on a machine without a GPU."""

import resource
import subprocess
import sys

from glmforge.assets import asset_path


def test_planning_imports_no_deepspeed_and_takes_less_than_8_seconds_of_a_processor() -> None:
    """Of the processor, so that busy test machines do not count: what a laptop waits."""
    code = (
        "import sys; sys.argv = ['glmforge', 'plan', *sys.argv[1:]]\n"
        "from glmforge.cli.main import main; code = main(); import torch\n"
        "assert 'deepspeed' not in sys.modules; assert not torch.cuda.is_initialized()\n"
        "sys.exit(code)"
    )
    data = asset_path("demo")
    settings = [
        str(data / "demo.yaml"),
        f"model.model_name_or_path={asset_path('base')}",
        f"data.train={data / 'train.jsonl'}",
        f"data.validation={data / 'facts_validation.jsonl'}",
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code, *settings], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 8
