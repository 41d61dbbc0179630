"""Which GPUs and how many processes `--nproc`, `--gpus` and CUDA_VISIBLE_DEVICES mean together."""

import pytest

from glmforge.errors import LaunchError
from glmforge.launch.gpus import Placement, devices_in_words, place, visible_from

UUIDS = ["GPU-aaaa-1", "GPU-bbbb-2"]


@pytest.mark.parametrize(
    ("variables", "num_devices", "visible"),
    [
        ({}, 0, []),
        ({}, 3, ["0", "1", "2"]),
        ({"CUDA_VISIBLE_DEVICES": "4,5, 7"}, 8, ["4", "5", "7"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, 8, []),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 8, []),
        ({"CUDA_VISIBLE_DEVICES": "1,9,2"}, 4, ["1"]),
        ({"CUDA_VISIBLE_DEVICES": ",".join(UUIDS)}, 8, UUIDS),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, 0, []),
    ],
)
def test_the_visible_gpus_are_those_that_cuda_would_show(
    variables: dict[str, str], num_devices: int, visible: list[str]
) -> None:
    assert visible_from(variables, num_devices) == visible


@pytest.mark.parametrize(
    ("nproc", "gpus", "visible", "expected"),
    [
        (None, None, [], Placement(nproc=1, gpus=None)),
        (2, None, [], Placement(nproc=2, gpus=None)),
        (2, None, ["0", "1", "2"], Placement(nproc=2, gpus=None)),
        (None, "0,2", ["0", "1", "2"], Placement(nproc=2, gpus=("0", "2"))),
        (2, "0,2", ["4", "5", "7"], Placement(nproc=2, gpus=("4", "7"))),
        (None, "1", UUIDS, Placement(nproc=1, gpus=("GPU-bbbb-2",))),
        (None, "GPU-bbbb-2", UUIDS, Placement(nproc=1, gpus=("GPU-bbbb-2",))),
        (None, "GPU-bbbb", UUIDS, Placement(nproc=1, gpus=("GPU-bbbb-2",))),
        (None, "GPU-cccc", ["0", "1"], Placement(nproc=1, gpus=("GPU-cccc",))),
    ],
)
def test_gpus_index_what_is_visible(
    nproc: int | None, gpus: str | None, visible: list[str], expected: Placement
) -> None:
    assert place(nproc, gpus, visible) == expected


@pytest.mark.parametrize(
    ("nproc", "gpus", "visible", "message"),
    [
        (3, None, ["0", "1"], r"--nproc 3, but only 2 GPU\(s\) are visible \(0, 1\)"),
        (3, "0,1", ["0", "1"], r"--nproc 3 with --gpus 0,1 \(2 GPU\(s\)\)"),
        (1, "0,1", ["0", "1"], r"--nproc 1 with --gpus 0,1"),
        (None, "0", [], "no GPU is visible on this machine"),
        (None, "2", ["4", "5"], r"'2' is not one of 0 to 1; 2 GPU\(s\) are visible \(4, 5\)"),
        (None, "0,0", ["0", "1"], "'0' is named twice"),
        (None, "0,", ["0", "1"], "'' is not one of 0 to 1"),
        (None, "GPU-cccc", UUIDS, "'GPU-cccc' is not one of"),
    ],
)
def test_what_does_not_fit_is_refused(
    nproc: int | None, gpus: str | None, visible: list[str], message: str
) -> None:
    with pytest.raises(LaunchError, match=message):
        place(nproc, gpus, visible)


@pytest.mark.parametrize(
    ("placement", "visible", "words"),
    [
        (Placement(nproc=2, gpus=None), ["4", "5", "7"], ", GPUs 4, 5"),
        (Placement(nproc=1, gpus=("7",)), ["4", "5", "7"], ", GPUs 7"),
        (Placement(nproc=2, gpus=None), [], ""),
    ],
)
def test_the_cards_are_printed_by_the_drivers_ids(
    placement: Placement, visible: list[str], words: str
) -> None:
    """Also where only CUDA_VISIBLE_DEVICES chose them."""
    assert devices_in_words(placement, visible) == words


def test_every_wrong_gpu_is_named_at_once() -> None:
    with pytest.raises(LaunchError) as caught:
        place(None, "0,5,x", ["0", "1"])
    assert len(caught.value.problems) == 2
