"""One stand-in proxy, or two, for each test."""

from collections.abc import Iterator

import pytest

from tests.service.client.standin import Standin, standing_in


@pytest.fixture
def proxy() -> Iterator[Standin]:
    with standing_in() as standin:
        yield standin


@pytest.fixture
def other() -> Iterator[Standin]:
    with standing_in() as standin:
        yield standin
