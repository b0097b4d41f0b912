"""A request of the admin API with a misspelt name changes nothing: it is rejected with the nearest name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from ddmq.server.admin.api import ROUTES, Route, check_parameters
from ddmq.server.admin.bodies import DeadLetterResendBody, OffsetResetBody
from ddmq.server.http.parameters import Body, describe_fields, read_body
from ddmq.server.http.routing import FORWARDED, NO_LISTINGS, AdminRequest
from ddmq_common.errors import CallerError

DECLARED = [route for route in ROUTES if isinstance(route.body, type) and issubclass(route.body, Body)]


def misspellings(name: str) -> Iterator[str]:
    """The name without one of its letters, with one doubled, and with one in upper case."""
    for at, letter in enumerate(name):
        yield name[:at] + name[at + 1 :]
        yield name[:at] + letter + name[at:]
        yield name[:at] + letter.swapcase() + name[at + 1 :]


def rejection_of(route: Route, query: dict[str, str], body: dict[str, Any]) -> str:
    with pytest.raises(CallerError) as raised:
        check_parameters(route, AdminRequest({}, query, body))
    return str(raised.value)


@pytest.mark.parametrize("route", DECLARED, ids=lambda route: f"{route.method} {route.path}")
def test_a_misspelt_body_key_is_rejected_with_the_nearest_key(route: Route) -> None:
    assert route.body is not None
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
    for name in (*route.query, FORWARDED):
        for misspelt in set(misspellings(name)) - {*route.query, ""}:
            assert f"'{misspelt}' is no query name" in rejection_of(route, {misspelt: "1"}, {})


def test_a_request_without_a_body_takes_no_keys() -> None:
    for route in ROUTES:
        if route.body is None and route.path not in NO_LISTINGS:
            assert "is no body key of this request (allowed: none)" in rejection_of(route, {}, {"all": True})


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
