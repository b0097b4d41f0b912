from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.service.consumer.push import http_receiver
from tests.service.consumer.push.push_rig import PushRig


@pytest.fixture
def receiver() -> Iterator[http_receiver.Receiver]:
    with http_receiver.receiver() as server:
        yield server


@pytest.fixture
def rig() -> PushRig:
    return PushRig()
