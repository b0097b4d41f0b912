"""A subscription that a client's first pull and somebody's settings make at the same moment.

Here or at two proxies, of a topic that is there or not yet: the settings that were said hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from backend.completion import Completion
from ddmq_client.idl.codes import Code
from ddmq_common.config import ConfigLocation, build_overlay
from proxy_consumer.config import ConsumerConfig, GroupEntry, GroupsFile, SubscriptionDefaults
from proxy_consumer.service import ConsumerService
from tests.service.consumer.consumer_rig import ConsumerRig, directory
from tests.support.waits import until


def set_by_command(service: ConsumerService) -> Completion[Any]:
    return service.change_subscription("G", "T", {"order_key": "KEY", "start": "first"})


def set_by_file(service: ConsumerService) -> Completion[Any]:
    subscription = build_overlay(
        SubscriptionDefaults, {"order_key": "KEY", "start": "first"}, ConfigLocation("", "")
    )
    file = GroupsFile({"G": GroupEntry(topics={"T": subscription})})
    return service.declare(file, "groups.yaml")


@pytest.mark.parametrize("queues", [0, 2])
@pytest.mark.parametrize("pull_first", [True, False])
@pytest.mark.parametrize("proxies", [1, 2])
@pytest.mark.parametrize("announce", [set_by_command, set_by_file])
def test_settings_stated_while_a_pull_creates_the_group_hold(
    announce: Callable[[ConsumerService], Completion[Any]], proxies: int, pull_first: bool, queues: int
) -> None:
    rig = ConsumerRig()
    if queues:
        rig.topic(queues=queues)
    services = [rig.service, rig.start() if proxies == 2 else rig.service]
    calls = []
    if pull_first:
        calls.append(rig.start_pull(linger=100, clientId=b"c"))
    done = announce(services[0])
    if not pull_first:
        calls.append(rig.start_pull(linger=100, clientId=b"c"))
    until(lambda: done.done)
    rig.settle()
    assert done.error is None
    for service in services:
        assert directory(service).groups[b"G"].subscriptions[b"T"].config.order_key == "KEY"
    rig.advance(0.2)
    assert all(call.answered for call in calls)


def test_a_pull_that_loses_the_race_for_the_last_group_is_rejected() -> None:
    rig = ConsumerRig(ConsumerConfig(groups_max=1))
    rig.topic()
    handlers = [rig.handlers]
    rig.start()
    handlers.append(rig.handlers)
    rig.backend.pause_writes()
    calls = []
    for number, each in enumerate(handlers):
        rig.handlers = each
        calls.append(rig.start_pull(group=b"G%d" % number, linger=10_000))
    rig.settle()
    rig.backend.resume_writes()
    until(lambda: any(call.answered for call in calls), "one of them is refused")
    (refused,) = [call for call in calls if call.answered]
    assert refused.outcome.error.code == Code.BUSY
    assert refused.outcome.error.message == b"there are 1 groups; groups_max is 1"
    rig.settle()
    assert len(rig.backend.settings("group/")) == 1
    assert sum(call.open for call in calls) == 1, "the other waits for messages"
