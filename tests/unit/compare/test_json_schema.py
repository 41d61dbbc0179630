"""The part of JSON Schema that an answer's form needs, against values worked out by hand."""

import pytest

from glmforge.compare.json_schema import matches

PERSON = {
    "type": "object",
    "required": ["name"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "minLength": 1, "pattern": "^[A-Z]"},
        "age": {"type": "integer", "minimum": 0, "exclusiveMaximum": 200},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 2},
        "note": {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 3}]},
    },
}


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ({"name": "Li"}, True),
        ({"name": "li"}, False),
        ({"name": ""}, False),
        ({}, False),
        ([], False),
        ({"name": "Li", "more": 1}, False),
        ({"name": "Li", "age": 20}, True),
        ({"name": "Li", "age": 20.0}, True),
        ({"name": "Li", "age": 20.5}, False),
        ({"name": "Li", "age": -1}, False),
        ({"name": "Li", "age": 200}, False),
        ({"name": "Li", "age": True}, False),
        ({"name": "Li", "tags": ["a"]}, True),
        ({"name": "Li", "tags": ["a", "c"]}, False),
        ({"name": "Li", "tags": []}, False),
        ({"name": "Li", "tags": ["a", "b", "a"]}, False),
        ({"name": "Li", "note": None}, True),
        ({"name": "Li", "note": "abc"}, True),
        ({"name": "Li", "note": "abcd"}, False),
    ],
)
def test_an_object_fits_or_does_not(value, fits):
    assert matches(value, PERSON) is fits


@pytest.mark.parametrize(
    ("value", "schema", "fits"),
    [
        (1, {"const": True}, False),
        (True, {"const": True}, True),
        (3, {"oneOf": [{"type": "integer"}, {"minimum": 2}]}, False),
        (1, {"oneOf": [{"type": "integer"}, {"minimum": 2}]}, True),
        (3, {"not": {"type": "string"}}, True),
        ("a", {"allOf": [{"type": "string"}, {"minLength": 2}]}, False),
        ("a", {"type": ["null", "string"]}, True),
        ({"a": 1}, {"maxProperties": 0}, False),
        (5, False, False),
    ],
)
def test_combinations(value, schema, fits):
    assert matches(value, schema) is fits
