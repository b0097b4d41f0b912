"""The demo's proof of order: it counts what is wrong, and only that."""

from __future__ import annotations

from ddmq.demo.library import LibraryFile
from ddmq.demo.ordered import BROKEN, ModuleOrder, by_module


def deliver(
    order: ModuleOrder, *numbers: int, module: str = "re", failed: bool = False, round_: int = 0
) -> None:
    for number in numbers:
        order.begin(module, number, round_)
        order.end(module, number, round_, failed=failed)


def wrongs(order: ModuleOrder) -> tuple[int, int, int]:
    return order.overtaken, order.together, order.went_back


def test_in_order_with_a_retry_is_right() -> None:
    order = ModuleOrder(3)
    deliver(order, 0)
    deliver(order, 1, 1, failed=True)
    deliver(order, 1, 2)
    deliver(order, 0, 1, module="json")
    assert wrongs(order) == (0, 0, 0)
    assert (order.deliveries, order.failures, order.finished_of("re"), order.finished_but("re")) == (
        7,
        2,
        3,
        2,
    )


def test_a_number_left_out_is_counted() -> None:
    order = ModuleOrder(3)
    deliver(order, 0, 2)
    assert wrongs(order) == (1, 0, 0)
    deliver(order, 1)
    assert wrongs(order) == (1, 0, 1), "and the one that was left out went back"


def test_a_successor_of_what_has_not_failed_for_the_last_time_is_counted() -> None:
    order = ModuleOrder(2)
    deliver(order, 0, failed=True)
    deliver(order, 1)
    assert wrongs(order) == (1, 0, 0)


def test_a_successor_of_a_dead_one_is_right() -> None:
    order = ModuleOrder(2)
    deliver(order, 0, 0, failed=True)
    deliver(order, 1)
    assert wrongs(order) == (0, 0, 0)


def test_two_of_a_module_at_once_are_counted() -> None:
    order = ModuleOrder(2)
    order.begin("re", 0)
    order.begin("json", 0)
    assert wrongs(order) == (0, 0, 0)
    assert order.at_once_max == 2
    order.begin("re", 1)
    assert wrongs(order) == (1, 1, 0), "it is together with the one before, which is not settled"


def test_a_later_round_has_an_order_of_its_own() -> None:
    order = ModuleOrder(1)
    deliver(order, 0, 1, failed=True)
    deliver(order, 0, 1, round_=1)
    assert wrongs(order) == (0, 0, 0)
    assert (order.revived, order.duplicates, order.finished_of("re")) == (2, 0, 2)
    deliver(order, 3, round_=1)
    assert wrongs(order) == (1, 0, 0)


def test_what_is_finished_twice_is_counted() -> None:
    order = ModuleOrder(1)
    deliver(order, 0, 0)
    assert (order.duplicates, order.finished_of("re"), order.deliveries) == (1, 1, 2)


def test_the_broken_module_is_sent_first() -> None:
    files = [LibraryFile(module, f"{module}/{n}", 1) for module in ("a", BROKEN, "z") for n in range(2)]
    modules = by_module([*files, LibraryFile("z", "z/2", 1)])
    assert list(modules) == [BROKEN, "z", "a"]
    assert [file.path for file in modules[BROKEN]] == [f"{BROKEN}/0", f"{BROKEN}/1"]
