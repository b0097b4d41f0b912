"""A request of the admin API with a misspelt name changes nothing: it is rejected with the nearest name."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddmq.server.admin.api import check_parameters
from ddmq.server.admin.contract.bodies import DeadLetterResendBody, OffsetResetBody
from ddmq.server.admin.contract.queries import DeadLettersQuery, MessagesQuery, TopicsQuery
from ddmq.server.admin.contract.rights import RIGHTS, split_rights
from ddmq.server.admin.contract.route import Route
from ddmq.server.admin.routes import ROUTES
from ddmq.server.http.parameters import (
    NUMBER_MAX,
    Body,
    Query,
    describe_fields,
    query_texts,
    read_body,
    read_query,
)
from ddmq.server.http.routing import FORWARDED, NO_LISTINGS, AdminRequest
from ddmq_common.errors import CallerError
from tests.support.misspellings import misspellings

DECLARED = [route for route in ROUTES if isinstance(route.body, type) and issubclass(route.body, Body)]


def query_names(route: Route) -> tuple[str, ...]:
    return route.query.__struct_encode_fields__ if route.query else ()


def rejection_of(route: Route, query: dict[str, str], body: dict[str, Any]) -> str:
    with pytest.raises(CallerError) as raised:
        check_parameters(route, AdminRequest({}, query, body))
    return str(raised.value)


@pytest.mark.parametrize("route", DECLARED, ids=lambda route: f"{route.method} {route.path}")
def test_a_misspelt_body_key_is_rejected_with_the_nearest_key(route: Route) -> None:
    assert isinstance(route.body, type)
    keys = describe_fields(route.body)
    assert keys
    for key in keys:
        for misspelt in set(misspellings(key)) - keys.keys() - {""}:
            error = rejection_of(route, {}, {misspelt: True})
            assert f"'{misspelt}' is no body key of this request" in error
            assert len(misspelt) < 3 or f"did you mean {key!r}?" in error


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_a_misspelt_query_name_is_rejected(route: Route) -> None:
    if route.path in NO_LISTINGS:
        assert check_parameters(route, AdminRequest({}, {"cache": "1"}, {})).query == {"cache": "1"}
        return
    names = query_names(route)
    for name in (*names, FORWARDED):
        for misspelt in set(misspellings(name)) - {*names, ""}:
            assert f"'{misspelt}' is no query name" in rejection_of(route, {misspelt: "1"}, {})


def required_query(route: Route) -> dict[str, str]:
    """Return the names that the query of a route must have, with values that are allowed."""
    fields = () if route.query is None else msgspec.structs.fields(route.query)
    return {field.encode_name: "g" for field in fields if field.required}


def test_a_request_without_a_body_takes_no_keys() -> None:
    for route in ROUTES:
        if route.body is None and route.path not in NO_LISTINGS:
            assert "is no body key of this request (allowed: none)" in rejection_of(
                route, required_query(route), {"all": True}
            )


@pytest.mark.parametrize("route", DECLARED, ids=lambda route: f"{route.method} {route.path}")
def test_a_value_of_the_wrong_type_is_rejected_with_what_is_allowed(route: Route) -> None:
    assert isinstance(route.body, type)
    for key, allowed in describe_fields(route.body).items():
        if route.body.__annotations__[key].startswith("Annotated[Any"):
            continue  # the handler knows what it may be
        error = rejection_of(route, {}, {"topic": "t", "action": "park", "key": "k", key: {"a": 1}})
        if "is no body key" not in error:
            assert f"{key} is {{'a': 1}}; allowed: {allowed}" == error


def test_a_missing_key_is_named() -> None:
    with pytest.raises(CallerError, match=re.escape("topic is missing; allowed: the name of a topic")):
        read_body(OffsetResetBody, {"to": "first"})


def test_a_declared_body_arrives_typed() -> None:
    body = read_body(DeadLetterResendBody, {"all": True, "dry_run": True, "cursor": [[0, 3, 9]]})
    assert (body.all, body.dry_run, body.cursor, body.offsets) == (True, True, [(0, 3, 9)], [])


@pytest.mark.parametrize(
    ("text", "internal"),
    [("1", True), ("true", True), ("0", False), ("false", False)],
)
def test_a_flag_is_a_number_or_a_word(text: str, internal: bool) -> None:
    assert read_query(TopicsQuery, {"internal": text}).internal is internal


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("count", "x", "a whole number of 0 or more"),
        ("count", "", "a whole number of 0 or more"),
        ("count", "-1", "a whole number of 0 or more"),
        ("count", "1.0", "a whole number of 0 or more"),
        ("count", "٣", "a whole number of 0 or more"),
        ("count", "9" * 19, "a whole number of 0 or more"),
        ("internal", "maybe", "0, 1, false, true"),
        ("internal", "", "0, 1, false, true"),
        ("internal", "2", "0, 1, false, true"),
    ],
)
def test_a_value_of_a_query_is_rejected_with_what_is_allowed(name: str, text: str, allowed: str) -> None:
    with pytest.raises(CallerError) as raised:
        read_query(TopicsQuery, {name: text})
    assert str(raised.value) == f"{name} is {text!r}; allowed: {allowed}"


def test_a_count_may_be_larger_than_what_is_returned() -> None:
    assert read_query(MessagesQuery, {"count": "9" * 18}).count == NUMBER_MAX


def test_an_empty_filter_is_not_an_absent_one() -> None:
    assert read_query(MessagesQuery, {"key": ""}).key == ""
    assert read_query(MessagesQuery, {}).key is None


QUERIES = {route.query for route in ROUTES if route.query is not None}


def texts_of(kind: type[Query]) -> st.SearchStrategy[dict[str, str]]:
    """Queries with some of the names of a route."""
    described = msgspec.json.schema_components([kind])[1][kind.__name__]["properties"]
    required = {field.encode_name for field in msgspec.structs.fields(kind) if field.required}
    values = {name: value_texts(each) for name, each in described.items()}
    return st.fixed_dictionaries({name: values.pop(name) for name in required}, optional=values)


def value_texts(schema: dict[str, Any]) -> st.SearchStrategy[str]:
    """Texts of the values that the schema of a field allows."""
    schema = schema.get("anyOf", [schema])[0]
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema["type"] == "integer":
        return st.integers(schema["minimum"], schema["maximum"]).map(str)
    if schema["type"] == "boolean":
        return st.sampled_from("01")
    return st.text(min_size=schema.get("minLength", 0), max_size=schema.get("maxLength"))


@given(st.data())
def test_a_query_is_forwarded_unchanged(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(QUERIES, key=lambda kind: kind.__name__)))
    query = read_query(kind, data.draw(texts_of(kind)))
    assert read_query(kind, query_texts(query)) == query


def test_a_forwarded_query_has_the_names_of_the_api() -> None:
    query = read_query(DeadLettersQuery, {"from": "7", "reason": ""})
    assert (query.start, query_texts(query)) == (7, {"from": "7", "reason": ""})


def test_probes_have_no_declared_query() -> None:
    assert all(route.query is None for route in ROUTES if route.path in NO_LISTINGS)
    assert read_query(Query, {}) == Query()


def test_every_route_names_rights_that_exist() -> None:
    assert {name for route in ROUTES for name in split_rights(route.right)} <= RIGHTS.keys()
