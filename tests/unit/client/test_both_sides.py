"""The blocking client is made from the asyncio one; tasks wait with what threads have, too."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from pathlib import Path
from types import ModuleType

import pytest

from ddmq_client.aio.sync import Condition

TOOL = Path(__file__).resolve().parents[3] / "tools" / "unasync.py"
SOURCE = '''"""Awaits nothing; async in prose stays.

    async with AsyncThing() as thing:
        print(await thing.both(thing))
"""

from ddmq_client.aio.sync import Condition


class AsyncThing:
    async def both(self, other: "AsyncThing") -> int:
        async with self.lock:
            return (await self.one()) + await other.one()

    async def aclose(self) -> None:
        self.end()

    # asyncio only
    def close(self) -> None:
        """Ends nothing."""

        print("closed")

    async def __aenter__(self) -> "AsyncThing":
        return self


# asyncio only
class AsyncOther(AsyncThing):
    pass
'''
BLOCKING = '''"""Awaits nothing; async in prose stays.

    with Thing() as thing:
        print(thing.both(thing))
"""

from ddmq_client.net.sync import Condition


class Thing:
    def both(self, other: "Thing") -> int:
        with self.lock:
            return (self.one()) + other.one()

    def close(self) -> None:
        self.end()

    def __enter__(self) -> "Thing":
        return self
'''


@pytest.fixture
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("unasync", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_awaited_is_called(tool: ModuleType) -> None:
    assert tool.translated(SOURCE) == BLOCKING


@pytest.mark.slow  # ruff puts the imports in order, a process
def test_a_stale_module_is_reported(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("aio", "net"):
        (tmp_path / folder).mkdir()
    (tmp_path / "aio" / "thing.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "CLIENT", tmp_path)
    monkeypatch.setattr(tool, "MODULES", ("thing",))
    assert tool.main(["--check"]) == 1
    assert "net/thing.py" in capsys.readouterr().out
    assert tool.main([]) == 0
    assert tool.main(["--check"]) == 0
    (tmp_path / "net" / "thing.py").write_text(BLOCKING, encoding="utf-8")
    assert tool.main(["--check"]) == 1, "its header is missing"


class FreeSlots:
    """Slots that tasks take and give back, as threads would."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.changed = Condition(self.lock)
        self.free = 0
        self.order: list[str] = []

    async def take(self, name: str, timeout: float | None = None) -> bool:
        with self.lock:
            while not self.free:
                if not await self.changed.wait(timeout):
                    return False
            self.free -= 1
            self.order.append(name)
            return True

    def give(self, count: int = 1) -> None:
        with self.lock:
            self.free += count
            self.changed.notify(count)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_as_many_go_on_as_were_notified_in_their_order() -> None:
    async def test() -> None:
        slots = FreeSlots()
        tasks = [asyncio.create_task(slots.take(name)) for name in "abcd"]
        await settled()
        slots.give(2)
        await settled()
        assert slots.order == ["a", "b"]
        assert not slots.lock.locked()
        with slots.lock:
            slots.free = 2
            slots.changed.notify_all()
        assert await asyncio.gather(*tasks) == [True] * 4

    asyncio.run(test(), debug=True)


def test_what_a_cancelled_task_was_notified_of_another_hears() -> None:
    async def test() -> None:
        slots = FreeSlots()
        first, second = (asyncio.create_task(slots.take(name)) for name in "ab")
        await settled()
        slots.give()
        first.cancel()
        assert await asyncio.wait_for(second, 20)
        assert slots.order == ["b"]
        with pytest.raises(asyncio.CancelledError):
            await first
        assert not slots.lock.locked()

    asyncio.run(test(), debug=True)


def test_a_wait_ends_with_its_time_and_leaves_nothing() -> None:
    async def test() -> None:
        slots = FreeSlots()
        assert not await slots.take("a", 0.0)
        assert not await slots.take("a", -1.0)
        task = asyncio.create_task(slots.take("b"))
        await settled()
        slots.give()
        assert await task

    asyncio.run(test(), debug=True)


def test_another_thread_may_notify() -> None:
    async def test() -> None:
        slots = FreeSlots()
        task = asyncio.create_task(slots.take("a"))
        await settled()
        await asyncio.to_thread(slots.give)
        assert await asyncio.wait_for(task, 20)

    asyncio.run(test(), debug=True)
