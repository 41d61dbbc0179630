"""A config's text that is no YAML at all."""

from collections.abc import Callable

Problems = Callable[..., list[str]]


def test_a_character_that_yaml_has_no_place_for_is_named_with_its_line(
    problems: Problems,
) -> None:
    """In the file, where it was torn, or on the command line."""
    (said,) = problems("model:\n  model_name_or_path: a\x00b\n")
    assert said == "c.yaml:2: not valid YAML: it holds the character U+0000"
    assert "U+0001" in str(problems("training: {}\n", "training.output_dir=\x01"))
