"""Errors carry all problems, and travel between ranks whole."""

import pickle

import pytest

from glmforge.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    GlmForgeError,
    Stopped,
    Unlisted,
)


def test_one_problem_reads_as_it_is_and_several_as_a_list():
    """The list is numbered, with the count first."""
    assert str(ConfigError("a is wrong")) == "a is wrong"
    assert str(ConfigError(["a", "b"])) == "2 problems:\n1. a\n2. b"


@pytest.mark.parametrize("problems", ["one", ["one", "two", "three"]])
def test_an_error_survives_pickling(problems):
    """Rank 0's error is raised on every rank."""
    error = CheckpointError(problems)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is CheckpointError
    assert again.problems == error.problems


def test_exit_codes_are_the_documented_ones():
    """1 for the user's problem, 75 for a stop with a checkpoint."""
    assert GlmForgeError("x").exit_code == 1
    assert Stopped("x").exit_code == 75


def test_a_line_that_counts_further_problems_is_counted_by_what_it_stands_for():
    """On other ranks too."""
    error = DataError(["a", "b", Unlisted("and 1,123 more", 1123)])
    for found in (error, pickle.loads(pickle.dumps(error)), DataError(error.problems)):
        assert str(found) == "1,125 problems:\n1. a\n2. b\nand 1,123 more"
