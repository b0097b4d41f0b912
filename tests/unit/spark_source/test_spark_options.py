"""Options of the Spark format: what is taken, what is refused and with which words."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from ddmq_client import TlsOptions
from metrics_job.sparksource import source
from metrics_job.sparksource.connecting import build_client_security
from metrics_job.sparksource.options import (
    SecurityOptions,
    SourceOptionError,
    Where,
    read_options,
    write_options,
)

LEAST = {"servers": "mq:9713", "topic": "orders"}


def test_omitted_options_have_defaults() -> None:
    parsed = read_options(LEAST)
    assert (parsed.topics, parsed.group, parsed.start, parsed.end) == (("orders",), "spark", None, None)
    assert (parsed.trigger_messages, parsed.fail_on_loss, parsed.timeout_ms) == (None, True, 30_000)


def test_option_names_ignore_case_and_those_of_spark_are_skipped() -> None:
    options = {"SERVERS": "a", "Topics": "x, y ,x", "failondataloss": "False", "checkpointLocation": "/c"}
    parsed = read_options(options | {"maxMessagesPerTrigger": "7"})
    assert (parsed.topics, parsed.fail_on_loss, parsed.trigger_messages) == (("x", "y"), False, 7)
    assert write_options({"servers": "a", "topic": "t", "queryName": "q"}).topic == "t"


def test_whether_rows_are_stored_once() -> None:
    options = {"servers": "a", "topic": "t"}
    assert write_options(options).store_once == "auto"
    assert [write_options(options | {"storeOnce": text}).store_once for text in ("True", " false")] == [
        "true", "false",
    ]  # fmt: skip
    with pytest.raises(SourceOptionError, match="storeOnce='yes'; allowed: auto, true, false"):
        write_options(options | {"storeOnce": "yes"})


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("first", Where(edge="first")),
        (" last ", Where(edge="last")),
        ("1767225600000", Where(time_ms=1_767_225_600_000)),
        ("2026-01-01T01:00:00+01:00", Where(time_ms=1_767_225_600_000)),
        ("2026-01-01T00:00:00Z", Where(time_ms=1_767_225_600_000)),
        ('{"orders": {"0": 5, "1": "last"}}', Where(offsets={"orders": {"0": 5, "1": "last"}})),
    ],
)
def test_offsets_can_be_named_in_many_ways(text: str, where: Where) -> None:
    assert read_options(LEAST | {"startingOffsets": text}).start == where
    assert read_options(LEAST | {"endingOffsets": text}).end == where


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"startingOffset": "first"}, ["'startingoffset'", "did you mean startingOffsets?"]),
        ({"path": "/x"}, ["'path' is not known"]),
        ({"startingOffsets": "2026-01-01T00:00:00"}, ["a time with its zone"]),
        ({"startingOffsets": "earliest"}, ["startingOffsets='earliest'", "first, last"]),
        ({"startingOffsets": '{"orders": {"0": -1}}'}, ["-1 is no offset", "0 or more"]),
        ({"startingOffsets": '{"orders": {"zero": 1}}'}, ["not of the form"]),
        ({"startingOffsets": '{"orders": [1]}'}, ["not of the form"]),
        ({"startingOffsets": '{"orders'}, ["not of the form"]),
        ({"maxMessagesPerTrigger": "0"}, ["maxMessagesPerTrigger='0'", "from 1"]),
        ({"maxMessagesPerPartition": "many"}, ["maxMessagesPerPartition='many'"]),
        ({"timeoutMs": "600001"}, ["timeoutMs='600001'", "600000"]),
        ({"failOnDataLoss": "no"}, ["failOnDataLoss='no'", "true, false"]),
        ({"topics": "a"}, ["either option topic"]),
        ({"servers": " "}, ["option servers is missing"]),
    ],
)
def test_an_invalid_option_is_named_with_the_allowed_values(more: dict[str, str], words: list[str]) -> None:
    lowered = {name.lower(): text for name, text in (LEAST | more).items()}
    with pytest.raises(SourceOptionError) as caught:
        read_options(lowered)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_an_empty_name_among_several_is_rejected() -> None:
    with pytest.raises(SourceOptionError, match="empty name"):
        read_options({"servers": "a", "topics": "x,,y"})


def test_options_of_reading_are_not_those_of_writing() -> None:
    with pytest.raises(SourceOptionError, match=r"for writing.*Known are: servers, topic, timeoutMs"):
        write_options({"servers": "a", "startingoffsets": "first"})


def test_a_secured_installation_is_reached_with_paths_alone(tmp_path: Path) -> None:
    """What Spark pickles, and shows in plans, has the paths and not what is in the files."""
    token = tmp_path / "spark.token"
    token.touch(0o600)
    token.write_text("ddmq_0f1e_secret")
    stated = {"tls": "true", "ca": "/etc/ca.crt", "tokenFile": str(token), "serverName": "mq"}
    for parsed in (read_options(LEAST | stated), write_options(LEAST | stated)):
        assert parsed.security == SecurityOptions(True, "/etc/ca.crt", None, None, "mq", str(token))
        assert b"secret" not in pickle.dumps(parsed)
        assert "secret" not in repr(parsed)
        arguments = build_client_security(parsed.security)
        assert arguments == {
            "tls": TlsOptions("/etc/ca.crt", None, None, "mq"),
            "token_file": str(token),
        }
        assert "secret" not in repr(arguments)


def test_tls_follows_from_its_files_and_else_from_the_environment() -> None:
    assert read_options(LEAST).security == SecurityOptions()
    assert build_client_security(SecurityOptions()) == {"tls": None, "token_file": None}
    assert read_options(LEAST | {"ca": "ca.crt"}).security.tls is True
    assert read_options(LEAST | {"tls": "false"}).security.tls is False
    assert build_client_security(SecurityOptions(tls=False))["tls"] is False


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tls": "false", "ca": "ca.crt"}, "option ca is for TLS, but option tls is false"),
        ({"key": "a.key"}, "option key is set and option certificate is not"),
        ({"tls": "yes"}, "option tls='yes'; allowed: true, false"),
        ({"token": "ddmq_0f1e_secret"}, "option 'token' is not known for reading; did you mean tokenFile?"),
    ],
)
def test_wrong_options_of_security_are_named_without_secrets(options: dict[str, str], words: str) -> None:
    with pytest.raises(SourceOptionError) as caught:
        read_options(LEAST | options)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def test_readers_get_the_options_of_security(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, object]] = []
    monkeypatch.setattr(source, "RangeReader", lambda *_, **arguments: made.append(arguments))
    source.open_reader(read_options(LEAST | {"ca": "ca.crt", "tokenFile": "spark.token"}))
    assert made == [{"timeout_ms": 30_000, "tls": TlsOptions("ca.crt"), "token_file": "spark.token"}]
