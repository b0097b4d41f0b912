"""The Redis sink against a redis-server, and the same against the stand-in of machines that have none."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy_consumer.push.actions.config import PushConfig, RedisConfig
from tests.service.consumer.push.push_rig import PushRig
from tests.service.consumer.push.redis_server import PASSWORD, Server, execute, redis_server
from tests.service.consumer.push.small_redis import SmallRedis
from tests.support.waits import until

QUICK = {"retry_intervals_ms": (), "retry_steps": 0}


@pytest.fixture(scope="module", params=[pytest.param("redis-server", marks=pytest.mark.slow), "stand-in"])
def redis(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if request.param == "stand-in":
        with SmallRedis(PASSWORD) as small:
            yield Server(small.port, False)
        return
    folder: Path = tmp_path_factory.mktemp("redis")
    with redis_server(folder) as server:
        yield server


def pushed(
    rig: PushRig, port: int, *commands: list[str], actions: Any = ("Json", "Redis"), **more: Any
) -> None:
    password = more.pop("password", PASSWORD)
    timeout_ms = more.pop("timeout_ms", 5_000)
    config = RedisConfig(
        hosts=(f"127.0.0.1:{port}",),
        password=password,
        timeout_ms=timeout_ms,
        commands=tuple(map(tuple, commands)),
    )
    rig.pushed(*actions, push=PushConfig(redis=config), **more)


def test_every_command(rig: PushRig, redis: Server) -> None:
    pushed(
        rig,
        redis.port,
        ["SET", "a:{$.id}", "{body}"],
        ["SET", "a:{$.id}", "again", "NX"],
        ["SET", "timed", "$.name", "XX", "EX", "100"],
        ["SET", "timed", "$.name", "PX", "50000"],
        ["MSET", "m1", "{key}", "m2", "{topic}"],
        ["HSET", "h", "one", "$.id", "two", "$.list"],
        ["HMSET", "h", "three", "3"],
        ["HDEL", "h", "one"],
        ["MSET", "gone", "x"],
        ["DEL", "gone", "not there"],
    )
    rig.put('{"id":7,"name":"ä","list":[1, 2]}'.encode())
    rig.until_committed(1)
    assert execute(redis.port, "GET", "a:7") == b'$35\r\n{"id":7,"name":"\xc3\xa4","list":[1,2]}\r\n'.replace(
        b"$35", b"$%d" % len('{"id":7,"name":"ä","list":[1,2]}'.encode())
    )
    assert execute(redis.port, "GET", "timed") == b"$2\r\n\xc3\xa4\r\n"
    assert 40_000 < int(execute(redis.port, "PTTL", "timed")[1:]) <= 50_000
    assert execute(redis.port, "GET", "m1") == b"$1\r\nk\r\n"
    assert execute(redis.port, "GET", "m2") == b"$1\r\nT\r\n"
    assert b"three" in execute(redis.port, "HGETALL", "h")
    assert b"one" not in execute(redis.port, "HGETALL", "h")
    assert execute(redis.port, "EXISTS", "gone") == b":0\r\n"
    assert rig.outcomes() == {"done": 1}


def test_binary_bodies_without_json(rig: PushRig, redis: Server) -> None:
    pushed(rig, redis.port, ["SET", "raw", "{body}"], actions=("Redis",))
    rig.put(b"\xff\x00\r\n")
    rig.until_committed(1)
    assert execute(redis.port, "GET", "raw") == b"$4\r\n\xff\x00\r\n\r\n"


def test_the_first_error_fails_the_job(rig: PushRig, redis: Server) -> None:
    execute(redis.port, "SET", "text", "x")
    commands = (["SET", "before", "1"], ["HSET", "text", "f", "1"], ["SET", "after", "1"])
    pushed(rig, redis.port, *commands, **QUICK)
    rig.put(b"{}", b'{"a":1}')
    rig.until_moved(lambda: rig.progress().committed == 2)
    assert execute(redis.port, "EXISTS", "before") == b":1\r\n"
    assert execute(redis.port, "EXISTS", "after") == b":0\r\n"
    assert any("HSET: WRONGTYPE" in value for value in rig.dead()[0][1].values())
    assert rig.outcomes() == {"failed": 2}


def test_a_missing_value_fails_before_anything_is_sent(rig: PushRig, redis: Server) -> None:
    pushed(rig, redis.port, ["SET", "never", "1"], ["SET", "x", "$.nowhere"], **QUICK)
    rig.put(b"{}")
    rig.until_moved(lambda: rig.progress().committed == 1)
    assert execute(redis.port, "EXISTS", "never") == b":0\r\n"
    assert any("nothing at $.nowhere" in value for value in rig.dead()[0][1].values())


def test_an_invalid_password_fails(rig: PushRig, redis: Server) -> None:
    pushed(rig, redis.port, ["SET", "x", "1"], password="wrong", **QUICK)
    rig.put(b"{}")
    rig.until_moved(lambda: rig.progress().committed == 1)
    assert rig.outcomes() == {"failed": 1}
    assert not any("wrong" in value for _, texts in rig.dead() for value in texts.values())


@pytest.mark.slow
def test_many_messages_over_a_few_connections(rig: PushRig, redis: Server) -> None:
    pushed(rig, redis.port, ["HSET", "many", "{$.n}", "1"])
    rig.put(*[b'{"n":%d}' % number for number in range(300)])
    rig.until_committed(300)
    assert execute(redis.port, "HGETALL", "many").startswith(b"*600\r\n")


def test_a_redis_that_is_down_or_silent_fails_the_job(rig: PushRig) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        began = time.monotonic()
        pushed(rig, port, ["SET", "x", "1"], timeout_ms=100, **QUICK)
        rig.put(b"{}")
        until(lambda: rig.outcomes() == {"failed": 1})
        assert time.monotonic() - began < 20
    rig.put(b"{}")
    until(lambda: rig.outcomes() == {"failed": 2})


def test_hosts_outside_the_allow_list_hold_the_subscription_back() -> None:
    rig = PushRig(push_targets=("127.0.0.1:1",))
    pushed(rig, 2, ["SET", "x", "1"])
    rig.put(b"{}")
    rig.settle()
    assert rig.counted("ddmq_push_held") == 1
    assert rig.progress().committed in (None, 0)


def test_a_host_that_is_allowed_no_more_holds_the_subscription_back(rig: PushRig) -> None:
    pushed(rig, 2, ["SET", "x", "1"])
    rig.settle()
    assert rig.counted("ddmq_push_held") == 0
    rig.service.reconfigure(PushRig(push_targets=("127.0.0.1:1",)).config)
    rig.put(b"{}")
    rig.settle()
    assert rig.counted("ddmq_push_held") == 1
    assert rig.outcomes() == {}
