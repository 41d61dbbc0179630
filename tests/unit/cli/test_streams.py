"""What is printed may be lost; what prints it goes on."""

import io
import os

import pytest

from glmforge.cli.streams import lasting


@pytest.fixture
def pipe():
    """Both ends of a pipe, the second as a lasting stream."""
    reading, writing = os.pipe()
    with open(writing, "w", encoding="utf-8") as file:
        yield reading, lasting(file)


def test_it_writes_what_the_stream_would(pipe):
    reading, stream = pipe
    print("步骤 1", file=stream)
    stream.buffer.write(b"bytes\n")
    stream.flush()
    assert os.read(reading, 100).decode() == "步骤 1\nbytes\n"
    assert stream.encoding == "utf-8"
    os.close(reading)


def test_a_reader_that_goes_away_ends_nothing(pipe):
    """Nor does the buffered layer keep what cannot be written, to fail with it at the end."""
    reading, stream = pipe
    os.close(reading)
    for _ in range(3):
        print("step", file=stream)
        stream.buffer.write(b"line\n")
        stream.flush()
    assert os.readlink(f"/proc/self/fd/{stream.fileno()}") == os.devnull
    stream.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full device here")
def test_a_full_disk_under_the_log_loses_lines_only():
    with open("/dev/full", "w", encoding="utf-8") as file:
        stream = lasting(file)
        for _ in range(3):
            print("step", file=stream)
        assert os.readlink(f"/proc/self/fd/{stream.fileno()}") == "/dev/full"
        stream.close()


def test_what_has_no_descriptor_is_left_as_it_is():
    stream = io.StringIO()
    assert lasting(stream) is stream
    assert lasting(None) is None
