"""A Slurm job script for a run: written from the command line, and submitted where sbatch is.

srun starts one task a GPU; the program reads Slurm's own variables (distributed/env.py). Two
minutes before its end the job gets SIGUSR1: the run writes a checkpoint, ends with status 75, and
the script asks for another turn, which goes on from that checkpoint (or begins, where the signal
came before training).
"""

import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from glmforge.errors import LaunchError

WARNING_SECONDS = 120
FINISHING_SECONDS = 60
"""How long the other tasks may go on after the first one has ended. srun's --kill-on-bad-exit would
end them at once, also where a task stopped on purpose (75) and others still write."""

_SCRIPT = """\
#!/bin/bash
# Written by `glmforge train --slurm`. Partition, account and time are yours to add, here or on
# sbatch's command line: sbatch --partition P --account A --time 24:00:00 {name}
#SBATCH --job-name={job}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={tasks}
#SBATCH --gpus-per-node={tasks}
#SBATCH --output={logs}/%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR1@{warning}

cd {directory} || exit 1
srun --kill-on-bad-exit=0 --wait={finishing} {command}
code=$?
# 75: stopped by a signal, with a checkpoint. 130, 138: by SIGINT or SIGUSR1 before training, such
# as while loading. The job takes another turn and goes on from the newest checkpoint, or begins.
case "$code" in
  75|130|138) scontrol requeue "$SLURM_JOB_ID" ;;
esac
exit "$code"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """A job: machines, tasks (one a GPU) on each, and the arguments of `glmforge train`."""

    nodes: int
    tasks_per_node: int
    arguments: tuple[str, ...]
    directory: Path
    run_dir: Path


def job_script(job: SlurmJob, program: Sequence[str], script: Path) -> str:
    """Return the text of a job script.

    Args:
        job: what to run.
        program: how this program is started, such as ("glmforge",).
        script: where the text will be written; named in its first comment.
    """
    resumes = () if "--resume" in job.arguments else ("--resume", "auto")
    command = shlex.join([*program, "train", *job.arguments, *resumes])
    return _SCRIPT.format(
        name=script.name,
        job=re.sub(r"[^\w.-]", "-", f"glmforge-{job.run_dir.name}"),
        nodes=job.nodes,
        tasks=job.tasks_per_node,
        logs=shlex.quote(str(job.run_dir.parent.resolve())),
        warning=WARNING_SECONDS,
        finishing=FINISHING_SECONDS,
        directory=shlex.quote(str(job.directory.resolve())),
        command=command,
    )


def write_job(job: SlurmJob, program: Sequence[str]) -> Path:
    """Write the script beside the run directory and return its path.

    Raises:
        LaunchError: it cannot be written.
    """
    script = job.run_dir.with_name(f"{job.run_dir.name}.sbatch")
    try:
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(job_script(job, program, script), encoding="utf-8")
    except OSError as error:
        raise LaunchError(f"--slurm: {script} cannot be written ({error.strerror})") from None
    return script


def submit(script: Path) -> str | None:
    """Submit a script where sbatch exists; return what sbatch said, or None without it.

    Raises:
        LaunchError: sbatch refused it.
    """
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        return None
    done = subprocess.run([sbatch, str(script)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LaunchError(
            f"sbatch refused {script}: {done.stderr.strip() or done.returncode}; correct the "
            "#SBATCH lines and submit it by hand"
        )
    return done.stdout.strip()
