"""What exit codes mean, and which of several is the cause."""

import pytest

from glmforge.launch.endings import ending_in_words, urgency


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-9, "died of signal 9 (SIGKILL): ended by the system or by hand; most often the machine"),
        (137, "died of signal 9 (SIGKILL): ended by the system"),
        (-7, "died of signal 7 (SIGBUS): a memory page could not be had; most often /dev/shm is"),
        (-11, "died of signal 11 (SIGSEGV): an invalid memory access"),
        (-6, "died of signal 6 (SIGABRT): native code gave up, such as an NCCL timeout"),
        (-12, "died of signal 12 (SIGUSR2)"),
        (-63, "died of signal 63"),
        (3, "ended with exit status 3"),
        (255, "ended with exit status 255"),
    ],
)
def test_an_end_is_put_into_words(code: int, words: str) -> None:
    assert ending_in_words(code).startswith(words)


def test_a_death_by_signal_counts_before_a_message_and_that_before_a_crash() -> None:
    """Peers of a dead rank crash in their collective, or NCCL aborts them."""
    assert urgency(-9) < urgency(1) < urgency(3)
    assert urgency(-6) == urgency(3)
