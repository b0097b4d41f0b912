"""What goes to Redis and into files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy_consumer.push.actions.config import FileConfig, RedisConfig
from proxy_consumer.push.actions.job import ActionJob, MessagePosition
from proxy_consumer.push.actions.steps import parse
from proxy_consumer.push.sinks.file import NotALineError, check_file, encode_line, file_name
from proxy_consumer.push.sinks.redis import Commands, NoValueError


def job(body: bytes = b'{"id":7,"name":"a b","o":{"x":1},"n":null}', *, parsed: bool = True) -> ActionJob:
    action_job = ActionJob(b"k", b"t", body, {b"p": b"v"}, MessagePosition("T", "G", "q_0", 5))
    if parsed:
        parse(action_job)
    return action_job


def commands(*templates: list[str], after_json: bool = True) -> Commands:
    config = RedisConfig(hosts=("127.0.0.1:6379",), commands=tuple(map(tuple, templates)))
    return Commands(config, after_json=after_json)


def test_templates_are_filled_in() -> None:
    filled = commands(
        ["set", "user:{$.id}", "$.name", "NX", "EX", "60"],
        ["HSET", "{topic}", "{key}-{tag}", "$.o"],
        ["DEL", "plain"],
        ["MSET", "a", "{body}", "b", "x{$.id}y{$.id}"],
    ).fill_commands(job())
    assert filled == [
        [b"SET", b"user:7", b"a b", b"NX", b"EX", b"60"],
        [b"HSET", b"T", b"k-t", b'{"x":1}'],
        [b"DEL", b"plain"],
        [b"MSET", b"a", b'{"id":7,"name":"a b","o":{"x":1},"n":null}', b"b", b"x7y7"],
    ]


@pytest.mark.parametrize("path", ["$.nowhere", "$.n", "$.o.y"])
def test_an_argument_without_a_value_fails(path: str) -> None:
    with pytest.raises(NoValueError, match="there is nothing at"):
        commands(["DEL", path]).fill_commands(job())


def test_binary_bodies_go_as_they_are() -> None:
    assert commands(["SET", "{key}", "{body}"], after_json=False).fill_commands(
        job(b"\xff\0", parsed=False)
    ) == [[b"SET", b"k", b"\xff\0"]]


@pytest.mark.parametrize(
    "command",
    [
        [], ["GET", "a"], ["FLUSHALL"], ["DEL"], ["SET", "a"], ["SET", "a", "b", "EX"],
        ["SET", "a", "b", "EX", "0"], ["SET", "a", "b", "EX", "$.n"], ["SET", "a", "b", "NX", "XX"],
        ["SET", "a", "b", "KEEPTTL"], ["MSET", "a"], ["HSET", "a", "b"], ["HMSET", "a", "b", "c", "d"],
        ["HDEL", "a"], ["DEL", "{nothing}"], ["DEL", "$..[?("],
    ],
)  # fmt: skip
def test_commands_that_are_refused(command: list[str]) -> None:
    with pytest.raises(ValueError, match=r"push\.redis|JSONPath"):
        commands(command)


def test_a_path_needs_the_parsed_body() -> None:
    with pytest.raises(ValueError, match="put Json before Redis"):
        commands(["DEL", "$.id"], after_json=False)


# --- lines


def test_records() -> None:
    assert encode_line(FileConfig(), job()) == (
        b'{"topic":"T","qid":"q_0","offset":5,"key":"k","tag":"t","properties":{"p":"v"},'
        b'"body":{"id":7,"name":"a b","o":{"x":1},"n":null}}\n'
    )
    bare = ActionJob(b"", b"", b"a\nb", {}, MessagePosition("T", "G", "q_0", 5))
    assert encode_line(FileConfig(), bare) == b'{"topic":"T","qid":"q_0","offset":5,"body":"a\\nb"}\n'
    bare.body = b"\xff"
    assert encode_line(FileConfig(), bare) == b'{"topic":"T","qid":"q_0","offset":5,"body_base64":"/w=="}\n'


def test_bodies() -> None:
    config = FileConfig(content="body")
    assert encode_line(config, job(b"\xff", parsed=False)) == b"\xff\n"
    assert encode_line(config, job(b'{\n"a":1}')) == b'{"a":1}\n'
    with pytest.raises(NotALineError):
        encode_line(config, job(b"a\nb", parsed=False))


@given(st.binary())
def test_a_record_is_one_line_whatever_the_body(body: bytes) -> None:
    line = encode_line(FileConfig(), job(body, parsed=False))
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")


@pytest.mark.parametrize("name", ["", ".x", "a/b", "..", "{topic}/x", "{other}", "a b", "x" * 200, "a\0b"])
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="never a path"):
        check_file(FileConfig(name=name))


def test_names() -> None:
    config = FileConfig(name="{group}.{topic}-{date}_1")
    check_file(config)
    assert file_name(config, job(), "2026-01-31") == "G.T-2026-01-31_1"
