"""A function whose call runs nothing is never taken for one that did its work.

Every parameter of the public classes that takes a function has a row here, for each kind of wrong function:
those that show what they are, which are rejected, and those that hide it, whose call counts as failed.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import itertools
import logging
import sqlite3
import typing
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol
from unittest.mock import AsyncMock

import pytest

from ddmq_client import (
    Admin,
    Consumer,
    FetchConsumer,
    JsonSerializer,
    OptionError,
    OutgoingMessage,
    Producer,
    RangeReader,
    UndecidedTransaction,
)
from ddmq_client.aio import AsyncAdmin, AsyncConsumer, AsyncFetchConsumer, AsyncProducer
from ddmq_client.net.transactions import Transaction
from ddmq_client.sql import DecisionTable, InboxTable, OutboxRelay, OutboxTable
from tests.service.client.either import bank
from tests.service.client.standin import Standin
from tests.service.client.standin_transactions import NOT_KNOWN_YET
from tests.support.waits import loop_until

Function = Callable[..., Any]
NOWHERE = "127.0.0.1:9"
MODULES = ("ddmq_client", "ddmq_client.aio", "ddmq_client.sql", "ddmq_client.opentelemetry")
RAN: list[object] = []  # what a wrong function would do, if anybody ran it


async def coroutine_function(*args: Any) -> None:
    RAN.append(args)


def generator_function(*args: Any) -> Iterator[None]:
    RAN.append(args)
    yield


async def async_generator_function(*args: Any) -> Any:
    RAN.append(args)
    yield


class AsyncMethods:
    async def __call__(self, *args: Any) -> None:
        RAN.append(args)

    async def method(self, *args: Any) -> None:
        RAN.append(args)

    @staticmethod
    async def static(*args: Any) -> None:
        RAN.append(args)

    @classmethod
    async def of_class(cls, *args: Any) -> None:
        RAN.append(args)


class GeneratorCall:
    def __call__(self, *args: Any) -> Iterator[None]:
        RAN.append(args)
        yield


def decorated(function: Function) -> Function:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


ASYNC = {
    "async function": coroutine_function,
    "partial of an async function": functools.partial(coroutine_function, 1),
    "partial of a partial of a bound async method": functools.partial(
        functools.partial(AsyncMethods().method), 1
    ),
    "bound async method": AsyncMethods().method,
    "static async method": AsyncMethods.static,
    "async method of the class": AsyncMethods.of_class,
    "object with async __call__": AsyncMethods(),
    "AsyncMock": AsyncMock(),
    "partial of an object with async __call__": functools.partial(AsyncMethods(), 1),
}
LAZY = {
    "generator function": generator_function,
    "partial of a generator function": functools.partial(generator_function, 1),
    "object whose __call__ yields": GeneratorCall(),
    "async generator function": async_generator_function,
    "no function": 3,
}
HIDDEN_ASYNC: dict[str, Function] = {
    "lambda that returns a coroutine": lambda *args: coroutine_function(*args),
    "decorated async function": decorated(coroutine_function),
}
HIDDEN_LAZY: dict[str, Function] = {
    "lambda that returns a generator": lambda *args: generator_function(*args),
    "lambda that returns an async generator": lambda *args: async_generator_function(*args),
    "decorated generator function": decorated(generator_function),
    "lambda that returns a map": lambda *args: map(RAN.append, args),
    "lambda that returns a filter": lambda *args: filter(RAN.append, args),
    "lambda that returns a starmap": lambda *args: itertools.starmap(RAN.append, [args]),
}


def unawaited_in(function: Function) -> Function:
    """An async function that returns what it should have awaited, or run."""

    async def handler(*args: Any) -> Any:
        return function(*args)

    return handler


class Observer:
    """Does nothing; `methods` replace its own."""

    def __init__(self, **methods: Any) -> None:
        self.messages: Any = ()
        vars(self).update(methods)

    def sending(self, messages: Any, call: Any) -> Any:
        return self

    def handed_out(self, messages: Any, client_id: str, asked_ns: int | None) -> None:
        pass

    def handling(self, messages: Any, call: Any) -> Any:
        return self


# --- parameters: what is made with a wrong function, which must raise OptionError


def table_of(check: Function) -> None:
    with Producer(NOWHERE, producer_group="g") as producer:
        producer.transaction(check=check)


def aio_table_of(check: Function) -> None:
    AsyncProducer(NOWHERE, producer_group="g").transaction(check=check)


def background_send(on_done: Function) -> None:
    with Producer(NOWHERE) as producer:
        producer.send_async(OutgoingMessage("t", b"x"), on_done=on_done)


def relay(connect: Function) -> None:
    with Producer(NOWHERE) as producer:
        OutboxRelay(connect, OutboxTable(), producer)


class Codec:
    """A serializer; `methods` replace its own."""

    def __init__(self, **methods: Any) -> None:
        vars(self).update(methods)

    def serialize(self, value: Any) -> bytes:
        return b"x"

    def deserialize(self, body: bytes) -> Any:
        return body


def serialized_by(make: Function) -> Function:
    def each_method(function: Function) -> None:
        for name in ("serialize", "deserialize"):
            with pytest.raises(OptionError, match="serializer"):
                make(
                    NOWHERE,
                    *(("g", "t") if "Consumer" in make.__name__ else ()),
                    serializer=Codec(**{name: function}),
                )
        raise OptionError("serializer: both")

    return each_method


def observed_by(make: Function) -> Function:
    def each_method(function: Function) -> None:
        for name in ("sending", "handed_out", "handling"):
            with pytest.raises(OptionError, match="observer"):
                make(
                    NOWHERE,
                    *(("g", "t") if "Consumer" in make.__name__ else ()),
                    observer=Observer(**{name: function}),
                )
        raise OptionError("observer: all three")

    return each_method


REJECTS: dict[tuple[str, str], Function] = {
    ("Consumer", "handler"): lambda f: Consumer(NOWHERE, "g", "t", handler=f),
    ("Consumer", "batch_handler"): lambda f: Consumer(NOWHERE, "g", "t", batch_handler=f),
    ("Consumer", "on_late"): lambda f: Consumer(NOWHERE, "g", "t", on_late=f),
    ("Consumer", "on_error"): lambda f: Consumer(NOWHERE, "g", "t", on_error=f),
    ("Consumer", "observer"): observed_by(Consumer),
    ("Producer", "selector"): lambda f: Producer(NOWHERE, selector=f),
    ("Producer", "check"): lambda f: Producer(NOWHERE, producer_group="g", check=f),
    ("Producer", "observer"): observed_by(Producer),
    ("Producer.send_async", "on_done"): background_send,
    ("Producer.transaction", "check"): table_of,
    ("AsyncConsumer", "handler"): lambda f: AsyncConsumer(NOWHERE, "g", "t", handler=f),
    ("AsyncConsumer", "batch_handler"): lambda f: AsyncConsumer(NOWHERE, "g", "t", batch_handler=f),
    ("AsyncConsumer", "on_late"): lambda f: AsyncConsumer(NOWHERE, "g", "t", on_late=f),
    ("AsyncConsumer", "on_error"): lambda f: AsyncConsumer(NOWHERE, "g", "t", on_error=f),
    ("AsyncConsumer", "observer"): observed_by(AsyncConsumer),
    ("AsyncProducer", "selector"): lambda f: AsyncProducer(NOWHERE, selector=f),
    ("AsyncProducer", "check"): lambda f: AsyncProducer(NOWHERE, producer_group="g", check=f),
    ("AsyncProducer", "observer"): observed_by(AsyncProducer),
    ("AsyncProducer.transaction", "check"): aio_table_of,
    ("Consumer", "serializer"): serialized_by(Consumer),
    ("Producer", "serializer"): serialized_by(Producer),
    ("AsyncConsumer", "serializer"): serialized_by(AsyncConsumer),
    ("AsyncProducer", "serializer"): serialized_by(AsyncProducer),
    ("JsonSerializer", "into"): lambda f: JsonSerializer(into=f),
    ("DecisionTable.check", "connect"): lambda f: DecisionTable().check(f),
    ("OutboxRelay", "connect"): relay,
    ("Admin", "token"): lambda f: Admin(NOWHERE, token=f),
    ("AsyncAdmin", "token"): lambda f: AsyncAdmin(NOWHERE, token=f),
    ("AsyncConsumer", "token"): lambda f: AsyncConsumer(NOWHERE, "g", "t", token=f),
    ("AsyncFetchConsumer", "token"): lambda f: AsyncFetchConsumer(NOWHERE, "g", token=f),
    ("AsyncProducer", "token"): lambda f: AsyncProducer(NOWHERE, token=f),
    ("Consumer", "token"): lambda f: Consumer(NOWHERE, "g", "t", token=f),
    ("FetchConsumer", "token"): lambda f: FetchConsumer(NOWHERE, "g", token=f),
    ("Producer", "token"): lambda f: Producer(NOWHERE, token=f),
    ("RangeReader", "token"): lambda f: RangeReader(NOWHERE, "g", "t", token=f),
}
AWAITED = {
    ("AsyncConsumer", "handler"),
    ("AsyncConsumer", "batch_handler"),
    ("AsyncProducer", "check"),
    ("AsyncProducer.transaction", "check"),
}
CREATED_BY_LIBRARY = {  # and by nobody else
    ("Transaction", "checked"),
    ("Transaction", "observer"),
    ("AsyncTransaction", "checked"),
    ("AsyncTransaction", "observer"),
    ("Replies", "message"),
    ("Replies", "settling"),
    ("Replies", "serializer"),
}


def make_on_loop(where: tuple[str, str], function: Function) -> None:
    """Make what the row says; clients for asyncio need a running event loop for that."""

    async def make() -> None:
        REJECTS[where](function)

    asyncio.run(make())


def flatten_hint(hint: Any) -> Iterator[Any]:
    yield hint
    for inner in typing.get_args(hint):
        for each in inner if isinstance(inner, list) else (inner,):
            yield from flatten_hint(each)


def takes_function(hint: Any) -> bool:
    """Whether a value of that type may be a function, or an object whose methods a client calls."""
    for member in flatten_hint(hint):
        if member is Callable or typing.get_origin(member) is typing.get_origin(Callable[..., Any]):
            return True
        if inspect.isclass(member) and Protocol in member.__mro__:
            return True
    return False


def parameters() -> Iterator[tuple[tuple[str, str], Any]]:
    """((class and method, name), type) of every parameter of the public classes."""
    for module in map(importlib.import_module, MODULES):
        for exported in (getattr(module, name) for name in module.__all__):
            for name, method in inspect.getmembers(exported, inspect.isfunction):
                if name == "__init__" or not name.startswith("_"):
                    where = exported.__name__ if name == "__init__" else f"{exported.__name__}.{name}"
                    for parameter, hint in typing.get_type_hints(method).items():
                        yield (where, parameter), hint


def test_every_parameter_that_takes_a_function_has_a_row() -> None:
    callables = {where for where, hint in parameters() if where[1] != "return" and takes_function(hint)}
    assert callables == REJECTS.keys() | CREATED_BY_LIBRARY
    databases = {where for where, hint in parameters() if where[1] != "return" and hint is Any}
    # no functions: see the last tests here, and test_serializers.py for bodies
    assert {name for _, name in databases} == {"database", "body"}


CASES = [
    pytest.param(where, function, id=f"{'.'.join(where)}, {kind}")
    for where in REJECTS
    for kind, function in {**({} if where in AWAITED else ASYNC), **LAZY}.items()
]


@pytest.mark.parametrize(("where", "function"), CASES)
def test_a_function_that_shows_that_its_call_runs_nothing_is_rejected(
    where: tuple[str, str], function: Function
) -> None:
    with pytest.raises(OptionError, match=where[1]):
        make_on_loop(where, function)


@pytest.mark.parametrize("where", sorted(AWAITED))
@pytest.mark.parametrize("kind", ASYNC)
def test_a_client_for_asyncio_takes_async_functions(where: tuple[str, str], kind: str) -> None:
    make_on_loop(where, ASYNC[kind])


def test_the_error_says_what_to_use_instead() -> None:
    with pytest.raises(OptionError, match=r"coroutine_function.* is an async function.*AsyncConsumer"):
        Consumer(NOWHERE, "g", "t", handler=coroutine_function)
    with pytest.raises(OptionError, match=r"is an async function.*AsyncProducer"):
        Producer(NOWHERE, producer_group="g", check=coroutine_function)
    with pytest.raises(OptionError, match=r"is a generator function.*no yield"):
        Consumer(NOWHERE, "g", "t", handler=generator_function)


# --- functions that hide what they are


def outcome(proxy: Standin) -> tuple[set[int], str]:
    """Offsets that were acknowledged, and why the others failed."""
    acked: set[int] = set()
    reasons: list[str] = []
    for result in proxy.results:
        acked |= set(result.successOffsets or ())
        reasons += result.failReasons or ()
    return acked, " ".join(reasons)


HIDDEN = {**HIDDEN_ASYNC, **HIDDEN_LAZY}
UNENDED: dict[str, Function] = {"lambda that returns a Future": lambda *args: Future()}


@pytest.mark.parametrize("argument", ["handler", "batch_handler"])
@pytest.mark.parametrize("kind", HIDDEN | UNENDED)
def test_what_a_handler_did_not_run_is_not_acknowledged(proxy: Standin, argument: str, kind: str) -> None:
    RAN.clear()
    proxy.put("t", b"x")
    with Consumer(proxy.address, "g", "t", **{argument: (HIDDEN | UNENDED)[kind]}):
        proxy.wait(lambda: any(result.failOffsets for result in proxy.results))
    acked, reason = outcome(proxy)
    assert not acked
    assert f"OptionError: {argument} returned <" in reason
    assert RAN == []


@pytest.mark.parametrize("argument", ["handler", "batch_handler"])
@pytest.mark.parametrize(
    "handler",
    [
        *(pytest.param(function, id=kind) for kind, function in (HIDDEN_LAZY | UNENDED).items()),
        *(
            pytest.param(unawaited_in(each), id=f"async, not awaited: {kind}")
            for kind, each in HIDDEN.items()
        ),
    ],
)
def test_nor_in_asyncio(proxy: Standin, argument: str, handler: Function) -> None:
    RAN.clear()
    proxy.put("t", b"x")

    async def consume() -> None:
        async with AsyncConsumer(proxy.address, "g", "t", **{argument: handler}):
            await loop_until(lambda: any(result.failOffsets for result in proxy.results))

    asyncio.run(consume())
    acked, reason = outcome(proxy)
    assert not acked
    assert f"OptionError: {argument} returned <" in reason
    assert RAN == []


def test_asyncio_awaits_what_a_hidden_async_handler_returned(proxy: Standin) -> None:
    RAN.clear()
    proxy.put("t", b"x")

    async def consume() -> None:
        async with AsyncConsumer(proxy.address, "g", "t", handler=HIDDEN["decorated async function"]):
            await loop_until(lambda: bool(proxy.done))

    asyncio.run(consume())
    assert len(RAN) == 1


@pytest.mark.parametrize("kind", HIDDEN)
def test_also_where_the_application_settles_messages_itself(proxy: Standin, kind: str) -> None:
    proxy.put("t", b"x")
    with Consumer(proxy.address, "g", "t", handler=HIDDEN[kind], auto_ack=False):
        proxy.wait(lambda: any(result.failOffsets for result in proxy.results))
    assert not outcome(proxy)[0]


def test_a_future_is_allowed_there(proxy: Standin) -> None:
    proxy.put("t", b"x")
    future: Future[None] = Future()

    def begin(message: Any) -> Future[None]:
        future.add_done_callback(lambda _: message.ack())
        return future

    with Consumer(proxy.address, "g", "t", handler=begin, auto_ack=False):
        proxy.wait(lambda: bool(proxy.leases))
        future.set_result(None)
        proxy.wait(lambda: bool(proxy.done))
    assert outcome(proxy) == ({0}, "")


@pytest.mark.parametrize("kind", HIDDEN)
def test_a_selector(proxy: Standin, kind: str) -> None:
    with Producer(proxy.address, selector=HIDDEN[kind]) as producer:
        with pytest.raises(OptionError, match="the selector returned"):
            producer.send("t", b"x")
        (result,) = producer.send_batch([OutgoingMessage("t", b"x")])
    assert not result.stored
    assert "the selector returned" in result.text
    assert proxy.stored == []


@pytest.mark.parametrize("argument", ["on_late", "on_error"])
@pytest.mark.parametrize("kind", HIDDEN)
def test_a_callback_of_a_consumer(caplog: pytest.LogCaptureFixture, argument: str, kind: str) -> None:
    from ddmq_client.core.acks import UnappliedResult
    from ddmq_client.notifications import ConsumerNotifications
    from ddmq_client.received import Origin

    notifications = ConsumerNotifications(**{argument: HIDDEN[kind]})
    with caplog.at_level(logging.ERROR):
        if argument == "on_late":
            notifications.report_late([UnappliedResult(Origin("g", "t", "q"), 1, 2, False)], [])
        else:
            notifications.report_pull_error("proxy", ValueError("x"), 0.0)
    assert f"{argument} returned <" in caplog.text


@pytest.mark.parametrize("kind", HIDDEN)
def test_the_callback_of_a_send(proxy: Standin, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    with caplog.at_level(logging.ERROR), Producer(proxy.address) as producer:
        sent = producer.send_async(OutgoingMessage("t", b"x"), on_done=HIDDEN[kind])
        assert sent.result(20).stored
        assert producer.flush(20_000)
    assert "the callback returned <" in caplog.text


UNDECIDED_CHECKS = [
    *(pytest.param("blocking", check, id=kind) for kind, check in HIDDEN.items()),
    *(pytest.param("asyncio", check, id=f"asyncio: {kind}") for kind, check in HIDDEN_LAZY.items()),
    *(
        pytest.param("asyncio", unawaited_in(check), id=f"not awaited: {kind}")
        for kind, check in HIDDEN.items()
    ),
]


@pytest.mark.parametrize(("client", "check"), UNDECIDED_CHECKS)
def test_a_check_has_not_decided(
    proxy: Standin, caplog: pytest.LogCaptureFixture, client: str, check: Function
) -> None:
    with bank(client, proxy.address, entered=True) as make:
        producer = make(check=check)
        with producer.transaction() as tx:
            tx.send("orders", b"x")
            tx.undecided()
        proxy.offer(str(tx.id))
        proxy.wait(lambda: bool(proxy.ends))
        assert producer.check_counts().errors == 1
    assert [end.action for end in proxy.ends] == [NOT_KNOWN_YET]
    assert "check returned <" in caplog.text


UNDECIDED = UndecidedTransaction("0" * 32, (), None, 1, 0)


@pytest.mark.parametrize("kind", HIDDEN)
def test_a_connect(kind: str) -> None:
    decide = DecisionTable().check(HIDDEN[kind])
    with pytest.raises(OptionError, match="connect returned <"):
        decide(UNDECIDED)
    with Producer(NOWHERE) as producer, pytest.raises(OptionError, match="connect returned <"):
        OutboxRelay(HIDDEN[kind], OutboxTable(), producer).send_waiting()


@pytest.mark.parametrize("kind", HIDDEN)
def test_an_observer_of_sends(proxy: Standin, kind: str) -> None:
    observer = Observer(sending=HIDDEN[kind])
    raises_option_error = pytest.raises(OptionError, match=r"observer\.sending returned <")
    with Producer(proxy.address, observer=observer) as producer, raises_option_error:
        producer.send("t", b"x")
    assert proxy.stored == []


@pytest.mark.parametrize("method", ["ended", "failed"])
def test_the_end_of_an_observed_send(proxy: Standin, method: str) -> None:
    observed = type("Observed", (Observer,), {method: AsyncMethods.method})
    observer = Observer(sending=lambda *args: observed())
    raises_option_error = pytest.raises(OptionError, match=f"whose method {method} is an async function")
    with Producer(proxy.address, observer=observer) as producer, raises_option_error:
        producer.send("t", b"x")
    assert proxy.stored == []


@pytest.mark.parametrize("method", ["handling", "raised", "__enter__", "__exit__"])
def test_an_observer_of_handlers_fails_the_message(proxy: Standin, method: str) -> None:
    class Handling:
        def __enter__(self) -> None:
            pass

        def __exit__(self, *args: Any) -> None:
            pass

    if method != "handling":
        setattr(Handling, method, AsyncMethods.method)
    handling = coroutine_function if method == "handling" else lambda *args: Handling()
    proxy.put("t", b"x")
    observer = Observer(handling=lambda *args: handling(*args))
    with Consumer(proxy.address, "g", "t", handler=RAN.append, observer=observer):
        proxy.wait(
            lambda: sum(len(result.failOffsets or ()) for result in proxy.results) > 1
        )  # the worker lives
    acked, reason = outcome(proxy)
    assert not acked
    assert "observer.handling returned" in reason


def test_an_error_of_an_observer_of_deliveries_is_only_reported(
    proxy: Standin, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.put("t", b"x")
    with Consumer(
        proxy.address, "g", "t", observer=Observer(handed_out=HIDDEN["decorated async function"])
    ) as consumer:
        (message,) = consumer.pull(timeout_ms=20_000)
        message.ack()
    assert "observer.handed_out returned <" in caplog.text


# --- connections for asyncio, given to tables that block


class AsyncCursor:
    """As psycopg's: of a statement that nobody awaits it says -1."""

    rowcount, description = -1, None

    async def execute(self, statement: str, values: Any) -> None:
        RAN.append(statement)

    def close(self) -> None:
        pass


class AsyncConnection(sqlite3.Connection):
    def cursor(self, *args: Any) -> Any:
        return AsyncCursor()


def test_an_inbox_does_not_take_a_message_for_handled_over_a_connection_for_asyncio(tmp_path: Path) -> None:
    from ddmq_client import Message

    message = Message()
    message.message_id = "0" * 32
    database = sqlite3.connect(tmp_path / "x.db", factory=AsyncConnection)
    with pytest.raises(OptionError, match=r"AsyncConnection.* no statement ran"):
        InboxTable("r").first(database, message)
    database.close()


def test_the_library_itself_makes_transactions() -> None:
    with Producer(NOWHERE, producer_group="g") as producer:
        assert isinstance(producer.transaction(check=lambda transaction: None), Transaction)
