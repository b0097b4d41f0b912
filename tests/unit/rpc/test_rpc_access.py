"""Rules of methods and routes: none is forgotten."""

from __future__ import annotations

import dataclasses
import time

import pytest

from ddmq.server.admin.access import check_rules
from ddmq.server.admin.routes import ROUTES
from ddmq_client.idl import producer
from ddmq_common.metrics.registry import Registry
from ddmq_common.security.callers import CallerTable
from ddmq_rpc.access import open_methods
from ddmq_rpc.api import MethodRule, Service
from ddmq_rpc.traffic import RpcCounts

RULE = MethodRule(lambda _: None, lambda *_: None)
COUNTS = RpcCounts(Registry(), "ProducerService")


def test_a_method_without_a_rule_prevents_the_start() -> None:
    handlers = {"sendSync": print, "sendAsync": print}
    service = Service(producer, "ProducerService", handlers, rules={"sendSync": RULE})
    for callers in (None, CallerTable(lambda: 0)):
        with pytest.raises(ValueError, match="method sendAsync of ProducerService has no rule"):
            open_methods(service, callers, COUNTS, time.monotonic)
    with pytest.raises(ValueError, match="ProducerService has no rules, but rights are on"):
        open_methods(
            Service(producer, "ProducerService", handlers), CallerTable(lambda: 0), COUNTS, time.monotonic
        )


def test_without_rights_a_handler_is_called_as_it_is() -> None:
    service = Service(producer, "ProducerService", {"sendSync": print}, rules={"sendSync": RULE})
    assert open_methods(service, None, COUNTS, time.monotonic)[b"sendSync"].handler is print
    assert (
        open_methods(service, CallerTable(lambda: 0), COUNTS, time.monotonic)[b"sendSync"].handler
        is not print
    )


def test_a_route_without_a_rule_prevents_the_start() -> None:
    check_rules(ROUTES)
    route = dataclasses.replace(ROUTES[0], path="/new")
    with pytest.raises(ValueError, match="route GET /new has no rule"):
        check_rules([*ROUTES, route])
