"""A queue has one name: the number that commands show, in everything that the client returns and takes."""

from __future__ import annotations

import pytest

from ddmq_client import OptionError
from ddmq_client.core.fetching import Assignments, FetchAnswer
from ddmq_client.ranges import QueueBounds
from ddmq_client.received import (
    DeliveryContext,
    FetchedQueue,
    LateResult,
    Message,
    NothingToSettle,
    Origin,
    queue_number,
)


def message(queue: str) -> Message:
    one = Message()
    one.delivery = DeliveryContext(Origin("g", "orders", queue), 0.0, None, NothingToSettle())
    one.offset = 7
    return one


@pytest.mark.parametrize(
    ("name", "number"),
    [("R_default_a_3", 3), ("other_b_0", 0), ("R_default_%RETRY%_3", -1), ("queue", -1), ("", -1)],
)
def test_the_number_is_read_from_the_name_on_the_wire(name: str, number: int) -> None:
    assert queue_number(name) == number
    assert message(name).queue_id == number
    assert QueueBounds("orders", name, 0, 1).queue_id == QueueBounds("orders", name, 0, 1).number == number
    assert LateResult("g", "orders", name, 7, False).queue_id == number
    assert FetchedQueue("orders", name, 0, ()).queue_id == number


def test_a_message_is_named_as_commands_name_it() -> None:
    assert message("R_default_a_3").position == "orders/3/7"
    assert repr(message("R_default_a_3")).startswith("Message(orders/3/7, ")
    assert message("R_default_%RETRY%_3").position == "orders/R_default_%RETRY%_3/7"
    assert message("R_default_a_3").queue == "R_default_a_3", "as before, for one release"


def assigned() -> Assignments:
    assignments = Assignments("g")
    queue = FetchedQueue("orders", "R_default_a_3", 5, ())
    assignments.apply_answer(FetchAnswer("p", {}, 1, 0.0, 0.0, [queue]), 0.0)
    return assignments


def test_seeks_and_acknowledgements_take_numbers_of_assigned_queues() -> None:
    assignments = assigned()
    assignments.seek("orders", 3, 9)
    assert assignments.next_offsets("p") == {"orders": {"R_default_a_3": 9}}
    assert assignments.acks_by_proxy({"orders": {3: 4}}) == {"p": {"orders": {"R_default_a_3": 4}}}
    assert assignments.acks_by_proxy({"orders": {"R_default_a_3": 4}}) == {
        "p": {"orders": {"R_default_a_3": 4}}
    }


@pytest.mark.parametrize(("topic", "queue"), [("orders", 2), ("other", 3)])
def test_other_numbers_are_rejected(topic: str, queue: int) -> None:
    with pytest.raises(OptionError, match=f"queue {queue} of topic '{topic}' is not assigned"):
        assigned().seek(topic, queue, 9)
    with pytest.raises(OptionError, match="is not assigned"):
        assigned().acks_by_proxy({topic: {queue: 1}})
