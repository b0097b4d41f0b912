"""The busiest names are chosen, within their bound, and do not change places at every update."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ddmq.server.live.core.busiest import CLEARLY, DECAY, Busiest


def test_names_are_chosen_by_activity_up_to_the_bound() -> None:
    busiest = Busiest[str](2)
    busiest.update({"a": 1.0, "b": 3.0, "c": 2.0, "idle": 0.0})
    assert busiest.names == {"b", "c"}


def test_only_a_clearly_busier_name_replaces_another() -> None:
    busiest = Busiest[str](1)
    busiest.update({"a": 10.0})
    busiest.update({"b": 15.0})
    assert busiest.names == {"a"}
    busiest.update({"b": 15.0})
    assert busiest.names == {"b"}


def test_activity_is_forgotten_with_time() -> None:
    busiest = Busiest[str](1)
    busiest.update({"a": 1_000.0})
    for _ in range(1_000):
        busiest.update({})
    busiest.update({"b": 1.0})
    assert busiest.names == {"b"}


ACTIVITY = st.dictionaries(st.integers(0, 9), st.floats(0, 1e6), max_size=10)


@given(st.integers(1, 5), st.lists(ACTIVITY, max_size=30))
def test_the_bound_holds_and_no_other_name_is_clearly_busier(
    most: int, updates: list[dict[int, float]]
) -> None:
    busiest = Busiest[int](most)
    scores = dict.fromkeys(range(10), 0.0)
    for activity in updates:
        busiest.update(activity)
        scores = {name: score * DECAY + activity.get(name, 0.0) for name, score in scores.items()}
    assert len(busiest.names) <= most
    active = {name for name, score in scores.items() if score > 1.0}
    if len(busiest.names) < most:
        assert active <= busiest.names
    elif active - busiest.names:
        least = min(scores[name] for name in busiest.names)
        assert max(scores[name] for name in active - busiest.names) <= CLEARLY * least + 1.0
