"""The client's rule for names is that of the proxies."""

from __future__ import annotations

import pytest

from ddmq_client.application import names as client_names
from ddmq_client.application.names import find_name_error
from ddmq_common import names as common_names
from ddmq_common.names import find_group_name_error, find_topic_name_error


def test_the_limits_are_those_of_the_proxies() -> None:
    assert client_names.TOPIC_BYTES_MAX == common_names.TOPIC_BYTES_MAX
    assert client_names.GROUP_BYTES_MAX == common_names.GROUP_BYTES_MAX


@pytest.mark.parametrize(
    "name",
    ["", "a", "A_b-9%|", "ü", "a.b", "a/b", "a b", "a\n", "a\0", "\udc80", "x" * 119, "x" * 120, "x" * 128],
)
def test_a_name_is_valid_here_and_there(name: str) -> None:
    assert bool(find_name_error(name, client_names.TOPIC_BYTES_MAX)) == bool(find_topic_name_error(name))
    assert bool(find_name_error(name, client_names.GROUP_BYTES_MAX)) == bool(find_group_name_error(name))
