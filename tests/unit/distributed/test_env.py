"""Who this process is, for every launcher, and what is refused."""

import os

import pytest

from glmforge.distributed.env import World, expand_hosts, read_world, torch_variables, world_from
from glmforge.errors import LaunchError

TORCH = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29501",
}
SLURM = {
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_JOB_NODELIST": "node[01-02]",
}


def refusal(variables: dict[str, str]) -> str:
    with pytest.raises(LaunchError) as caught:
        world_from(variables)
    return str(caught.value)


def test_without_a_launcher_the_process_is_alone() -> None:
    assert world_from({}) == World()
    assert world_from({"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}) == World()
    assert world_from({"RANK": "", "WORLD_SIZE": ""}) == World()


def test_torchrun_is_read() -> None:
    expected = World(
        rank=3,
        local_rank=1,
        world_size=4,
        local_world_size=2,
        master_addr="node1",
        master_port=29501,
        launcher="torchrun",
    )
    assert world_from(TORCH | {"TORCHELASTIC_RUN_ID": "none"}) == expected


def test_the_deepspeed_launcher_is_read() -> None:
    """It calls the processes of this machine LOCAL_SIZE."""
    variables = TORCH | {"CROSS_RANK": "1", "CROSS_SIZE": "2", "LOCAL_SIZE": "2"}
    del variables["LOCAL_WORLD_SIZE"]
    world = world_from(variables)
    assert world.launcher == "deepspeed"
    assert world.local_world_size == 2


def test_our_launcher_is_read_from_what_it_writes() -> None:
    world = World(
        rank=1,
        local_rank=1,
        world_size=2,
        local_world_size=2,
        master_port=5000,
        launcher="glmforge",
    )
    assert world_from(torch_variables(world)) == world
    assert world_from(torch_variables(world) | SLURM) == world, "inside an salloc or srun shell"


def test_srun_is_read() -> None:
    assert world_from(SLURM) == World(
        rank=3,
        local_rank=1,
        world_size=4,
        local_world_size=2,
        master_addr="node01",
        master_port=12000 + 1234 * 7,
        launcher="slurm",
    )


def test_all_tasks_of_a_step_agree_on_the_port_and_other_steps_take_another() -> None:
    ports = [world_from(SLURM | {"SLURM_PROCID": str(rank)}).master_port for rank in range(4)]
    assert len(set(ports)) == 1
    assert world_from(SLURM | {"SLURM_STEP_ID": "1"}).master_port != ports[0]
    for job in ("1", "99999", "4294967000"):
        assert 12000 <= world_from(SLURM | {"SLURM_JOB_ID": job}).master_port < 32768


def test_an_address_and_port_exported_by_the_job_script_are_used() -> None:
    world = world_from(SLURM | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "6000"})
    assert (world.master_addr, world.master_port) == ("10.0.0.1", 6000)


def test_srun_on_one_node_meets_at_the_local_address() -> None:
    variables = SLURM | {"SLURM_JOB_NODELIST": "gpu7", "SLURM_LOCALID": "3"}
    del variables["SLURM_NODEID"], variables["SLURM_STEP_TASKS_PER_NODE"]
    world = world_from(variables)
    assert world.master_addr == "127.0.0.1"
    assert world.local_world_size == 4


def test_the_steps_own_numbers_count_before_the_jobs() -> None:
    """`srun -n 2` inside a job of 4 tasks."""
    step = {
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "node02",
        "SLURM_PROCID": "1",
    }
    world = world_from(SLURM | step)
    assert (world.rank, world.world_size, world.local_world_size) == (1, 2, 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"SLURM_STEP_ID": None},
        {"SLURM_STEP_ID": "4294967291"},
        {"SLURM_STEP_ID": "4294967290"},
        {"SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_NTASKS": None},
    ],
    ids=["sbatch script", "batch step", "salloc shell", "srun --pty bash", "no tasks"],
)
def test_a_shell_inside_a_job_is_no_launcher(changes: dict[str, str | None]) -> None:
    variables = SLURM | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
    for name, value in changes.items():
        if value is None:
            del variables[name]
        else:
            variables[name] = value
    assert world_from(variables) == World()


def test_torchrun_started_by_srun_is_torchrun() -> None:
    variables = SLURM | TORCH | {"TORCHELASTIC_RUN_ID": "x"}
    assert world_from(variables).launcher == "torchrun"


def test_read_world_completes_torchs_variables_under_srun_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [*TORCH, "GLMFORGE_LAUNCHER"]:
        monkeypatch.setenv(name, "")  # remembered, and taken away again after the test
        monkeypatch.delenv(name)
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    world = read_world()
    assert os.environ["RANK"] == "3"
    assert os.environ["LOCAL_RANK"] == "1"
    assert os.environ["WORLD_SIZE"] == "4"
    assert os.environ["LOCAL_WORLD_SIZE"] == "2"
    assert os.environ["MASTER_ADDR"] == "node01"
    assert os.environ["MASTER_PORT"] == str(world.master_port)
    assert read_world() == world


@pytest.mark.parametrize("kept", ["RANK", "WORLD_SIZE", "LOCAL_RANK"])
def test_half_set_variables_are_refused_by_name(kept: str) -> None:
    message = refusal({kept: "1"})
    assert message.startswith(f"the environment says {kept}=1, but ")
    for name in TORCH:
        if name not in (kept, "LOCAL_WORLD_SIZE"):
            assert name in message
    assert f"unset {kept}" in message


def test_all_wrong_numbers_are_reported_at_once() -> None:
    message = refusal(TORCH | {"RANK": "4", "LOCAL_RANK": "x", "MASTER_PORT": "70000"})
    assert "RANK is 4, expected less than WORLD_SIZE = 4" in message
    assert "LOCAL_RANK is 'x', expected a whole number" in message
    assert "MASTER_PORT is 70000, expected at least 1 and at most 65535" in message


def test_ranks_of_other_machines_need_the_local_count() -> None:
    variables = {name: TORCH[name] for name in TORCH if name != "LOCAL_WORLD_SIZE"}
    assert "LOCAL_WORLD_SIZE (processes on this machine) is not set" in refusal(variables)
    assert world_from(variables | {"MASTER_ADDR": "localhost"}).local_world_size == 4


def test_a_broken_slurm_step_is_refused_with_everything_that_is_wrong() -> None:
    variables = dict(SLURM, WORLD_SIZE="8")
    del variables["SLURM_PROCID"], variables["SLURM_JOB_NODELIST"]
    message = refusal(variables)
    assert "SLURM_PROCID is not set" in message
    assert "SLURM_JOB_NODELIST (the hosts of the job) is not set or empty" in message
    assert "WORLD_SIZE is 8, but srun started 4 tasks" in message


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ["node1"]),
        ("node[01-04,7]", ["node01", "node02", "node03", "node04", "node7"]),
        ("a,b[1,3],c", ["a", "b1", "b3", "c"]),
        ("rack[1-2]n[8-9]", ["rack1n8", "rack1n9", "rack2n8", "rack2n9"]),
        ("node[098-101].cluster", [f"node{n}.cluster" for n in ("098", "099", "100", "101")]),
        ("gpu-[a,b]-x", ["gpu-a-x", "gpu-b-x"]),
        ("", []),
    ],
)
def test_slurms_short_host_lists_are_expanded(text: str, hosts: list[str]) -> None:
    assert expand_hosts(text) == hosts


def test_tasks_of_uneven_nodes_are_counted_at_their_own_node() -> None:
    uneven = SLURM | {"SLURM_STEP_TASKS_PER_NODE": "3,1"}
    assert world_from(uneven | {"SLURM_NODEID": "0"}).local_world_size == 3
    assert world_from(uneven | {"SLURM_NODEID": "1", "SLURM_LOCALID": "0"}).local_world_size == 1
