"""The system's own topics (dead letters, retries, the delay levels), made on first need.

Also where topics are not created automatically: nobody sends to these, so that no mistyped name makes one.
"""

from __future__ import annotations

from dataclasses import replace

from backend.capabilities import Durability
from backend.completion import Completion, failed, succeeded
from backend.records import TopicInfo
from ddmq_common.errors import DdmqError
from proxy_consumer.runtime import Runtime


def ensure_topic(runtime: Runtime, name: str, queues: int) -> Completion[TopicInfo]:
    """The topic, made or grown to `queues` queues if need be."""
    info = runtime.backend.topic(name)
    if info is None:
        wanted = TopicInfo(name, 0, queues, durability=Durability.DURABLE)
    elif info.queues < queues:
        wanted = replace(info, queues=queues)
    else:
        return succeeded(info)
    try:
        return runtime.backend.put_topic(wanted, runtime.commit_deadline())
    except DdmqError as error:
        return failed(error)
