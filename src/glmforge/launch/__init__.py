"""Processes: starting the ranks of a run on this machine, and watching over them.

`local` starts and supervises, `gpus` chooses the devices, `ports` the meeting point, `endings`
puts exit codes into words, `failures` lets one rank speak for all. No torch is imported here: a
rank that cannot start should say so in a second.
"""

from glmforge.launch.local import launch_local, run_without_gpus

__all__ = ["launch_local", "run_without_gpus"]
