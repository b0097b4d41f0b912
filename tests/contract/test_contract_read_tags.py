"""Reading by tag hash: what is passed over, where to go on, and the bound of one call."""

from __future__ import annotations

import itertools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backend.records import tag_hash
from backend.testing.engine_contract.read_tags import *  # noqa: F403 - the published tests
from backend.testing.engine_contract.read_tags import all_of, make_tagged
from backend.testing.kit import Kit
from tests.examples import examples

NUMBERS = itertools.count()  # a topic for each example
TAGS = st.sampled_from([b"", b"red", b"blue", b"a", b"b"])


@settings(
    deadline=None, max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    tags=st.lists(TAGS, max_size=40),
    selected=st.frozensets(TAGS, max_size=3),
    count_max=st.integers(1, 7),
)
def test_the_same_as_choosing_afterwards(
    kit: Kit, tags: list[bytes], selected: frozenset[bytes], count_max: int
) -> None:
    queue = make_tagged(kit, *tags, topic=f"t{next(NUMBERS)}")
    expected = [offset for offset, tag in enumerate(tags) if tag in selected]
    assert all_of(kit, queue, frozenset(map(tag_hash, selected)), count_max) == expected
