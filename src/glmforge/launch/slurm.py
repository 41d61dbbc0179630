"""A Slurm job script for a run: written from the command line, and submitted where sbatch is.

srun starts one task a GPU; the program reads Slurm's own variables (distributed/env.py). Two
minutes before its end the job gets SIGUSR1: the run writes a checkpoint, ends with status 75, and
the script asks for another turn, which goes on from that checkpoint (or begins, where the signal
came before training). A script that somebody has changed is not written over.
"""

import hashlib
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

_SEAL = "# As written by glmforge (a script that was changed is not written over): "

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
{turns}
cd {directory} || exit 1
srun --kill-on-bad-exit=0 --wait={finishing} {command}
code=$?
{again}exit "$code"
"""

_TURNS = f"""\
#SBATCH --requeue
#SBATCH --signal=USR1@{WARNING_SECONDS}
"""

_AGAIN = """\
# 75: stopped by a signal, with a checkpoint. 130, 138: by SIGINT or SIGUSR1 before training, such
# as while loading. The job takes another turn and goes on from the newest checkpoint, or begins.
case "$code" in
  75|130|138) scontrol requeue "$SLURM_JOB_ID" ;;
esac
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """A job: machines, tasks (one a GPU) on each, and the arguments of `glmforge train`."""

    nodes: int
    tasks_per_node: int
    arguments: tuple[str, ...]
    directory: Path
    run_dir: Path

    @property
    def script(self) -> Path:
        """Where the script is written: beside the run directory."""
        return self.run_dir.with_name(f"{self.run_dir.name}.sbatch")

    @property
    def only_tries(self) -> bool:
        """Whether it is a preflight, which has nothing to go on with in another turn."""
        return "--preflight" in self.arguments


def job_script(job: SlurmJob, program: Sequence[str]) -> str:
    """Return the text of a job script.

    Args:
        job: what to run.
        program: how this program is started. A job has the PATH of whoever submits it, or none of
            it: an interpreter with its path, such as ("/venv/bin/python", "-m", "glmforge").
    """
    goes_on = not job.only_tries
    resumes = ("--resume", "auto") if goes_on and "--resume" not in job.arguments else ()
    command = shlex.join([*program, "train", *job.arguments, *resumes])
    text = _SCRIPT.format(
        name=job.script.name,
        job=re.sub(r"[^\w.-]", "-", f"glmforge-{job.run_dir.name}"),
        nodes=job.nodes,
        tasks=job.tasks_per_node,
        logs=shlex.quote(str(job.run_dir.parent.resolve())),
        turns=_TURNS if goes_on else "",
        finishing=FINISHING_SECONDS,
        directory=shlex.quote(str(job.directory.resolve())),
        command=command,
        again=_AGAIN if goes_on else "",
    )
    return f"{text}{_SEAL}{_digest(text)}\n"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def refuse_changed(script: Path) -> None:
    """Refuse to write over a script that is not as this program wrote one.

    Raises:
        LaunchError: somebody has changed it, or it is another's; or it cannot be read.
    """
    try:
        found = script.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise LaunchError(f"--slurm: {script} cannot be read ({error.strerror})") from None
    text, _, seal = found.rpartition(_SEAL)
    if seal.strip() != _digest(text):
        raise LaunchError(
            f"--slurm: {script} is there and was changed since glmforge wrote it, or is not its "
            f"own; it is left as it is. Submit it with `sbatch {shlex.quote(str(script))}`, or "
            "move it away (or name another training.output_dir) and start this command again"
        )


def write_job(job: SlurmJob, program: Sequence[str]) -> Path:
    """Write the script beside the run directory and return its path.

    Raises:
        LaunchError: it cannot be written, or `refuse_changed` refuses.
    """
    script = job.script
    refuse_changed(script)
    try:
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(job_script(job, program), encoding="utf-8")
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
