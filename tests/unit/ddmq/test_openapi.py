"""The admin API's description of itself: OpenAPI 3.1, complete, and no more than the server answers."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator
from schemathesis.specs.openapi import definitions

from ddmq.server.admin.contract.bodies import SettingsBody
from ddmq.server.admin.contract.openapi import encode_document
from ddmq.server.admin.contract.route import Route
from ddmq.server.admin.routes import ROUTES
from ddmq.server.config import TopicEntry
from ddmq.server.http.parameters import read_body
from ddmq_common.config import ConfigLocation, build
from ddmq_common.errors import CallerError, ConfigError
from tests.support.admin_contract import check_answer, described, list_references, resolves


def test_it_is_openapi() -> None:
    assert [error.message for error in definitions.OPENAPI_31_VALIDATOR.iter_errors(described())] == []
    assert {reference for reference in list_references(described()) if not resolves(reference)} == set()


def test_it_describes_every_route_with_its_right() -> None:
    rights = {
        (method.upper(), path): operation["x-ddmq-right"]
        for path, operations in described()["paths"].items()
        for method, operation in operations.items()
    }
    assert rights == {(route.method, route.path): route.right for route in ROUTES}


def test_names_of_operations_are_unique() -> None:
    names = [each["operationId"] for path in described()["paths"].values() for each in path.values()]
    assert len(set(names)) == len(names) == len(ROUTES)


def test_variables_of_paths_are_parameters() -> None:
    for path, operations in described()["paths"].items():
        for operation in operations.values():
            names = [each["name"] for each in operation["parameters"] if each["in"] == "path"]
            assert names == re.findall(r"\{(\w+)\}", path)


def test_every_name_of_a_query_says_what_it_means() -> None:
    for route in ROUTES:
        if route.query is not None:
            operation = described()["paths"][route.path][route.method.lower()]
            parameters = {each["name"]: each for each in operation["parameters"] if each["in"] == "query"}
            assert parameters.keys() == set(route.query.__struct_encode_fields__)
            assert all("; allowed: " in each["description"] for each in parameters.values())
            assert all("null" not in str(each["schema"]) for each in parameters.values())


def test_it_is_made_once() -> None:
    assert encode_document(ROUTES) is encode_document(ROUTES)
    assert msgspec.json.decode(encode_document(ROUTES)) == described()


@pytest.mark.parametrize("target", ["/topics?form=2", "/lag?form=2", "/keys?form=2"])
def test_each_form_is_held_to_its_own_description(target: str) -> None:
    with pytest.raises(AssertionError):
        check_answer("GET", target, 200, [])


@pytest.mark.parametrize(
    ("status", "body"),
    [(200, [{"topic": "a"}]), (200, {}), (200, [{"topic": "a", "shoe_size": 44}]), (418, {"error": "tea"})],
)
def test_an_answer_that_is_not_described_is_noticed(status: int, body: object) -> None:
    with pytest.raises(AssertionError):
        check_answer("GET", "/topics?count=3", status, body)


def test_a_described_answer_passes() -> None:
    assert check_answer("GET", "/topics?count=3", 200, []) == "GET /topics"
    empty = {"items": [], "exact": True, "missing": {}, "total": 0}
    assert check_answer("GET", "/topics?form=2", 200, empty) == "GET /topics"
    assert check_answer("GET", "/topics/a%2Fb", 404, {"error": "none"}) == "GET /topics/{topic}"
    assert check_answer("PUT", "/topics", 405, {"error": "PUT is not for /topics"}) is None


STRUCT_BODIES = [route for route in ROUTES if isinstance(route.body, type)]


@given(st.sampled_from(STRUCT_BODIES), st.dictionaries(st.text(max_size=5), st.none() | st.integers()))
def test_a_body_with_other_keys_is_rejected_as_described(route: Route, others: dict[str, object]) -> None:
    assert isinstance(route.body, type)
    others = {f"x{name}": value for name, value in others.items()} | {"x": None}
    with pytest.raises(CallerError, match="is no body key"):
        read_body(route.body, others)
    assert described()["components"]["schemas"][route.body.__name__]["additionalProperties"] is False


def test_settings_have_words_and_bounds() -> None:
    for route in ROUTES:
        if isinstance(route.body, SettingsBody):
            properties = route.body.schema["properties"]
            assert all(each["description"] for each in properties.values())
    queues = described()["components"]["schemas"]["TopicSettingsBody"]["properties"]["queues"]
    assert (queues["type"], queues["minimum"], queues["maximum"]) == ("integer", 1, 1024)


@pytest.mark.parametrize(
    ("value", "allowed"),
    [
        (1_000, True),
        ("64KiB", True),
        ("1 MiB", True),
        (None, True),
        (0, False),
        ("64KB", False),
        (1.5, False),
    ],
)
def test_a_size_is_described_as_it_is_accepted(value: object, allowed: bool) -> None:
    (schema,) = [
        route.body.schema["properties"]["body_bytes_max"]
        for route in ROUTES
        if isinstance(route.body, SettingsBody) and "body_bytes_max" in route.body.schema["properties"]
    ]
    assert Draft202012Validator(schema).is_valid(value) is allowed
    try:
        build(TopicEntry, {"body_bytes_max": value}, ConfigLocation("request", "orders"))
    except ConfigError:
        assert not allowed
    else:
        assert allowed
