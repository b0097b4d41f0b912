"""A change of settings, or a filter, with a misspelt key is rejected with the nearest one; nothing changes.

The keys of settings and filters are not those of a declared body (tests/unit/ddmq/test_admin_parameters.py).
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from ddmq.server.admin.api import AdminApi
from ddmq.server.admin.contract.bodies import SettingsBody
from ddmq.server.admin.contract.route import Route
from ddmq.server.admin.operations.service import FILTERS
from ddmq.server.admin.routes import ROUTES
from ddmq.server.http.parameters import describe_fields
from tests.service.consumer.consumer_rig import ConsumerRig
from tests.support.misspellings import misspellings

OF_SETTINGS = [route for route in ROUTES if isinstance(route.body, SettingsBody)]
REQUIRED = {"/groups/{group}": {"topics": ["T"]}, "/topics/{topic}": {"create": False}}  # by path


class ApiOfRig:
    """The admin API over the consumer proxy of a rig."""

    def __init__(self, rig: ConsumerRig) -> None:
        self._api = AdminApi(rig.backend, rig.service, rig.metrics, rig.clock, rig.backend.health)

    def request(self, method: str, path: str, body: Any = None) -> tuple[str, Any]:
        """The status, and the answer."""
        payload = msgspec.json.encode(body)
        statuses: list[str] = []
        environ = {
            "REQUEST_METHOD": method, "RAW_URI": path, "QUERY_STRING": "", "wsgi.input": io.BytesIO(payload),
            "CONTENT_TYPE": "application/json", "CONTENT_LENGTH": str(len(payload)),
        }  # fmt: skip
        answer = self._api.router(environ, lambda status, headers: statuses.append(status))
        return statuses[0], msgspec.json.decode(b"".join(answer))

    def error_of(self, path: str, body: Any) -> str:
        """The text of a rejection."""
        status, answer = self.request("POST", path, body)
        assert status.startswith("400"), (path, body, answer)
        return str(answer["error"])

    def observe(self) -> list[Any]:
        """Everything that settings are about."""
        return [self.request("GET", path) for path in ("/topics", "/topics/T", "/groups", "/groups/G")]


@pytest.fixture
def api(rig: ConsumerRig) -> ApiOfRig:
    rig.ready()
    return ApiOfRig(rig)


def keys_of(route: Route) -> Iterator[str]:
    assert isinstance(route.body, SettingsBody)
    yield from route.body.schema["properties"]


@pytest.mark.parametrize("route", OF_SETTINGS, ids=lambda route: route.path)
def test_a_misspelt_setting_is_rejected_with_the_nearest_one(api: ApiOfRig, route: Route) -> None:
    path = route.path.replace("{topic}", "T").replace("{group}", "G")
    keys = set(keys_of(route))
    before = api.observe()
    for key in keys:
        for misspelt in set(misspellings(key)) - keys - {""}:
            error = api.error_of(path, {misspelt: 1, **REQUIRED.get(route.path, {})})
            assert misspelt in error
            assert f"did you mean {key!r}" in error, error
    assert api.observe() == before


@pytest.mark.parametrize("kind", FILTERS)
def test_a_misspelt_key_of_a_filter_is_rejected_with_the_nearest_one(api: ApiOfRig, kind: str) -> None:
    keys = describe_fields(FILTERS[kind])
    action = {"dead_letters": "purge", "keys": "skip", "delays": "cancel", "retries": "now"}[kind]
    for key in keys:
        for misspelt in set(misspellings(key)) - keys.keys() - {""}:
            chosen = {"group": "G"} if "group" in keys else {}
            body = {"kind": kind, "action": action, "filter": {**chosen, misspelt: "1"}, "dry_run": False}
            error = api.error_of("/operations", body)
            assert misspelt in error
            assert len(misspelt) < 3 or f"did you mean {key!r}?" in error, error
