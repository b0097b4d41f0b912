from __future__ import annotations

from collections.abc import Iterator

import http_receiver
import pytest
from push_rig import PushRig


@pytest.fixture
def receiver() -> Iterator[http_receiver.Receiver]:
    with http_receiver.receiver() as made:
        yield made


@pytest.fixture
def rig() -> Iterator[PushRig]:
    made = PushRig()
    yield made
    made.close()
