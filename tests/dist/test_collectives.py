"""Small exchanges between ranks."""


def test_a_barrier_takes_the_same_way_on_every_rank(launch):
    """Whatever device a rank computes on: two GPUs once waited for each other for ever."""
    assert launch(2, "barrier_of_gpus")["barrier_of_gpus"] > 0.3
