"""What a step costs on more GPUs than were measured: computing, plus bytes over the links.

Per step and rank, with n ranks, P parameters and 2-byte elements, ring collectives move
(n - 1) / n of a buffer (NCCL's bus bytes):

* ZeRO-1 and 2: the gradients are reduced, and the updated weights gathered, once a step:
  2 x 2 P' bytes, P' trained parameters.
* ZeRO-3: weights are gathered in forward and again in backward of every micro-batch, gradients
  reduced once each: (2 + 2) P + 2 P' bytes.

Links are those inside a host of eight, and 200 Gb/s a GPU between hosts. How much of the
collectives hides behind computing is not known beforehand: the forecast gives both ends, nothing
hidden and all that can be. The same arithmetic is put beside every measured point.
"""

from scaling_worker import JOBS, TARGETS, model_config

NVLINK_BYTES = 275e9
"""Bytes a second and rank of an all-reduce on two H200 (`glmforge doctor`, 2026-11-30)."""
BETWEEN_HOSTS_BYTES = 25e9
"""200 Gb/s a GPU."""
HOST_GPUS = 8
FORECAST = (16, 32, 64)


def parameters_of(job) -> tuple[int, int]:
    """All parameters of a job's model, and the trained ones."""
    from glmforge.plan.shape import shape_of
    from glmforge.plan.weights import trained_parameters
    from glmforge.plan.workload import Workload

    shape = shape_of(model_config(job.shape))
    low_rank = job.method == "lora"
    work = Workload(method=job.method, lora_targets=TARGETS if low_rank else ())
    full = Workload(method="full")
    return trained_parameters(shape, full), trained_parameters(shape, work)


def bytes_per_step(job, ranks: int, accumulation: int) -> float:
    """Bytes that leave one rank in one step."""
    every, trained = parameters_of(job)
    share = (ranks - 1) / ranks
    if job.stage < 3:
        return share * 4 * trained
    return share * accumulation * (4 * every + 2 * trained)


def communication_seconds(job, ranks: int, accumulation: int) -> float:
    """Seconds of a step's collectives at the slowest link on their way."""
    rate = NVLINK_BYTES if ranks <= HOST_GPUS else BETWEEN_HOSTS_BYTES
    return bytes_per_step(job, ranks, accumulation) / rate


def computing_seconds(points: list[dict]) -> float:
    """Seconds of one micro-batch without collectives, from the point with the fewest GPUs."""
    fewest = points[0]
    spent = fewest.get("communication_seconds") or 0.0
    return (fewest["step_seconds"] - spent) / fewest["accumulation"]


def check_table(rows: list[dict]) -> str:
    """The model beside each measured point but those that it is made from."""
    lines = [
        "| job | GPUs | step s | model, nothing hidden | all hidden |",
        "|---|---|---|---|---|",
    ]
    for name, points in by_job(rows).items():
        compute = computing_seconds(points)
        for row in points[1:]:
            busy = compute * row["accumulation"]
            links = communication_seconds(JOBS[name], row["world_size"], row["accumulation"])
            lines.append(
                f"| {name} | {row['world_size']} | {row['step_seconds']:.3f} "
                f"| {busy + links:.3f} ({(busy + links) / row['step_seconds'] - 1:+.1%}) "
                f"| {max(busy, links):.3f} ({max(busy, links) / row['step_seconds'] - 1:+.1%}) |"
            )
    return "\n".join(lines) if len(lines) > 2 else ""


def forecast_table(rows: list[dict]) -> str:
    """Efficiency on 16 to 64 GPUs, a micro-batch each, against computing alone."""
    lines = [
        "| job | GPUs | computing s | collectives s | efficiency, nothing hidden | all hidden |",
        "|---|---|---|---|---|---|",
    ]
    for name, points in by_job(rows).items():
        compute = computing_seconds(points)
        for ranks in FORECAST:
            links = communication_seconds(JOBS[name], ranks, 1)
            lines.append(
                f"| {name} | {ranks} | {compute:.3f} | {links:.3f} "
                f"| {compute / (compute + links):.2f} | {compute / max(compute, links):.2f} |"
            )
    return "\n".join(lines) if len(lines) > 2 else ""


def by_job(rows: list[dict]) -> dict[str, list[dict]]:
    """The measured plain points of each job, by number of GPUs."""
    found: dict[str, list[dict]] = {}
    for row in rows:
        if row.get("kind") == "plain" and "losses" in row:
            found.setdefault(row["job"], []).append(row)
    return {name: sorted(r, key=lambda row: row["world_size"]) for name, r in found.items()}
