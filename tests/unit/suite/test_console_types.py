"""The declarations that the console's modules are checked against are made from the OpenAPI document."""

from __future__ import annotations

from ddmq.server.admin.contract.openapi import build_document
from ddmq.server.admin.routes import ROUTES
from tools.console_types import build_declarations, mark_types, to_type


def test_a_request_has_the_answer_of_its_path_and_form():
    lines = build_declarations(build_document(ROUTES), "").splitlines()
    answers = [line for line in lines if line.startswith("export function get(address: `/keys`,")]
    assert [line.rpartition(": ")[2] for line in answers] == [
        "Promise<KeysListingPage>;",
        "Promise<KeysAnswer>;",
    ]
    assert "form: 2" in answers[0]


def test_a_path_comes_before_those_whose_pattern_it_also_matches():
    text = build_declarations(build_document(ROUTES), "")
    assert text.index("get(address: `/topics/${string}/messages`") < text.index(
        "get(address: `/topics/${string}`"
    )


def test_a_schema_becomes_a_type():
    schema = {
        "type": "object",
        "required": ["a"],
        "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/x/B"}},
    }
    assert to_type(schema) == '{"a": number; "b"?: B}'
    assert to_type({"anyOf": [{"type": "string"}, {"type": "null"}]}) == "(string | null)"
    assert (
        to_type({"type": "object", "additionalProperties": {"enum": ["x", 1]}}) == 'Record<string, ("x" | 1)>'
    )


def test_paths_of_requests_and_what_is_loaded_are_visible_to_the_compiler():
    text = 'get(path`/topics/${name}`); html`<${Loaded} state=${list} absent="">${(page) => page.a}<//>`'
    assert mark_types(text) == (
        'get(`/topics/${name}`); html`<${Loaded} state=${list} absent="">${(page = list.data) => page.a}<//>`'
    )
