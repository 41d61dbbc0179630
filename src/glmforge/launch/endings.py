"""What the end of a process means: exit codes and signals in words for the user.

Also says which of several ends is likely the cause of the others. Knows numbers only; the
processes are in `watch.py`.
"""

import signal

PASSED_ON = (1, 2, 75, 130)
"""Exit codes by which a rank says on purpose what happened (errors.py); the launcher repeats them.
Any other end of a rank but `BUG` is a death: exit status 4."""

BUG = 3
"""Our own bug, which a rank has reported: also the launcher's exit status. It is not passed on like
those above, for the peers of a dead rank end with it too, in the collective that they shared."""

STOPPED = 75
INTERRUPTED = 130

_MEANINGS = {
    signal.SIGKILL: "ended by the system or by hand; most often the machine's memory (RAM) was "
    "full: see `dmesg`, use fewer processes, or less offloading to the CPU",
    signal.SIGBUS: "a memory page could not be had; most often /dev/shm is full: enlarge it "
    "(docker: --shm-size=16g)",
    signal.SIGSEGV: "an invalid memory access in native code; often two packages built for "
    "different torch or CUDA versions",
    signal.SIGABRT: "native code gave up, such as an NCCL timeout or a CUDA fault; its message is "
    "above",
    signal.SIGFPE: "an invalid arithmetic operation in native code",
    signal.SIGILL: "an instruction that this CPU does not have; a package was built for another",
    signal.SIGTERM: "asked to end from outside, such as by a scheduler",
    signal.SIGINT: "interrupted (Ctrl-C)",
    signal.SIGPIPE: "what read its output went away",
}


def ending_in_words(code: int) -> str:
    """Say what a return code means; negative codes are signals, as `subprocess` gives them.

    Codes from 129 to 192 are read as a shell's 128 + signal.
    """
    number = -code if code < 0 else code - 128 if 128 < code <= 192 else 0
    if not number:
        return f"ended with exit status {code}"
    try:
        known = signal.Signals(number)
    except ValueError:
        return f"died of signal {number}"
    meaning = _MEANINGS.get(known)
    return f"died of signal {number} ({known.name})" + (f": {meaning}" if meaning else "")


def urgency(code: int) -> int:
    """Rank endings of nearly the same moment by how likely they are the cause (0) of the others.

    When a rank dies, its peers fail in the collective that they shared with it: with an error of
    torch's (not a GlmForgeError), or aborted by NCCL. So those count last.
    """
    if code < 0 and code != -signal.SIGABRT:
        return 0
    return 1 if code in PASSED_ON else 2
