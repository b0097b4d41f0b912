"""The system's own topics, made on first need: delay levels and commands, outcomes, retries, dead letters.

They are made also where topics are not created automatically: no client sends to these, so that no mistyped
name makes one.
"""

from __future__ import annotations

from dataclasses import replace

from backend.capabilities import Durability
from backend.completion import Completion, failed, succeeded
from backend.port import Backend
from backend.records import TopicInfo
from ddmq_common.errors import DdmqError


def ready_topic(backend: Backend, name: str, queues: int, deadline: float) -> Completion[TopicInfo]:
    """The internal topic `name`, made or grown to `queues` queues if need be; it never shrinks.

    `deadline`: monotonic seconds. Fails with the engine's error, also where the engine refuses at once.
    """
    found = backend.topic(name)
    if found is None:
        wanted = TopicInfo(name, 0, queues, durability=Durability.DURABLE)
    elif found.queues < queues:  # creating gives an existing one back as it is: growing is a change of it
        wanted = replace(found, queues=queues)
    else:
        return succeeded(found)
    try:
        return backend.put_topic(wanted, deadline)
    except DdmqError as error:
        return failed(error)
