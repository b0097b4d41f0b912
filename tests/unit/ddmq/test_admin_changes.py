"""A change starts from what other processes have just changed; a look does not wait for it."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from backend.completion import Completion
from backend.memory import MemoryBackend
from backend.records import TopicInfo
from ddmq.server.admin.api import AdminApi
from ddmq_common.clock import ManualClock
from ddmq_common.errors import RemoteError
from ddmq_common.metrics.registry import Registry

FAR = 1e12


class Behind(MemoryBackend):
    """It sees that another process has grown the topic only when it is asked to catch up."""

    def caught_up(self) -> Completion[None]:
        done: Completion[None] = Completion()
        info = self.topic("orders")
        assert info is not None
        grown = self.put_topic(replace(info, queues=5), FAR)
        grown.then(lambda _: done.succeed(None))
        return done


@pytest.mark.parametrize(("method", "answered"), [("GET", 2), ("POST", 5)])
def test_a_change_starts_from_what_others_were_answered(method: str, answered: int) -> None:
    backend = Behind(ManualClock())
    backend.put_topic(TopicInfo("orders", 0, 2), FAR).wait(5)
    api = AdminApi(backend, None, Registry(), ManualClock(), backend.health)
    environ = {"REQUEST_METHOD": method, "RAW_URI": "/topics/orders", "QUERY_STRING": ""}
    body = b'{"readable": true}'
    environ |= {"CONTENT_LENGTH": str(len(body)), "CONTENT_TYPE": "application/json"}
    list(api.router(environ | {"wsgi.input": io.BytesIO(body)}, lambda status, headers: None))
    info = backend.topic("orders")
    assert info is not None
    assert info.queues == answered
    backend.close()


class UncertainBackend(MemoryBackend):
    """It cannot find out what others were answered, so many times."""

    failures = 0

    def caught_up(self) -> Completion[None]:
        done: Completion[None] = Completion()
        self.failures -= 1
        if self.failures < 0:
            done.succeed(None)
        else:
            done.fail(RemoteError("no leaders found"))
        return done


@pytest.mark.parametrize(("failures", "status"), [(3, "200"), (4, "503")])
def test_a_change_that_cannot_know_of_others_may_be_tried_again(failures: int, status: str) -> None:
    backend = UncertainBackend(ManualClock())
    backend.failures = failures
    api = AdminApi(backend, None, Registry(), ManualClock(), backend.health)
    environ = {"REQUEST_METHOD": "POST", "RAW_URI": "/topics/orders", "QUERY_STRING": ""}
    environ |= {"CONTENT_LENGTH": "2", "CONTENT_TYPE": "application/json"}
    environ |= {"wsgi.input": io.BytesIO(b"{}")}
    statuses: list[str] = []
    body = b"".join(api.router(environ, lambda status, headers: statuses.append(status)))
    assert statuses[0].startswith(status)
    refused = status == "503"
    assert (b"nothing was changed, try again: no leaders found" in body) == refused
    assert (backend.topic("orders") is None) == refused
    backend.close()
