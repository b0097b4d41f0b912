"""`ddmq send --idempotency-key-prefix`: a run that is repeated stores only what is missing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from ddmq.address import HostPort
from ddmq.cli.messages import sending
from ddmq.cli.root import run
from ddmq_client import Producer, ThrottledError
from tests.service.client.standin import BEFORE, Standin, refuse
from tests.support.ports import port_of, reserved


class SendCommand:
    """The command at the stand-in: its standard output; asserts the exit code."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.error = ""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        assert run(["send", "orders", *arguments]) == code
        captured = self._capsys.readouterr()
        self.error = captured.err
        return captured.out


@pytest.fixture
def send(
    proxy: Standin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[SendCommand]:
    proxy.recognises = True
    with reserved() as nobody:
        monkeypatch.setenv("DDMQ_PRODUCER", proxy.address)
        monkeypatch.setenv("DDMQ_ADMIN", f"127.0.0.1:{port_of(nobody)}")
        yield SendCommand(capsys)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines"
    path.write_bytes(b"a\n\nb\nc\n")
    return path


def test_a_run_that_is_repeated_stores_only_what_is_missing(
    send: SendCommand, proxy: Standin, lines: Path
) -> None:
    proxy.faults["sendBatch"].append(refuse(11))
    command = ("--lines", str(lines), "--idempotency-key-prefix", "import-1")
    assert "stored 2 messages" in send(*command, code=1)
    assert [message.idempotencyKey for message in proxy.stored] == ["import-1/2", "import-1/3"]
    assert "2 of them were there already" in send(*command)
    assert [message.body for message in proxy.stored] == [b"b", b"c", b"a"]
    report = json.loads(send(*command, "--json"))
    assert (report["stored"], report["stored_before"], report["body_differs"]) == (3, 3, 0)
    assert len(proxy.stored) == 3


def test_a_run_that_meets_a_full_log_stops_and_says_how_to_resume(
    send: SendCommand, proxy: Standin, tmp_path: Path
) -> None:
    """There may be none for an hour; each further request would wait for nothing."""
    path = tmp_path / "many"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(2_000)))
    command = ("--lines", str(path), "--idempotency-key-prefix", "p")
    soon = ("--timeout-ms", "200")
    proxy.full = True
    send(*command, *soon, code=1)
    assert "stopped behind message 500: nothing more could be stored" in send.error
    assert "run the same again, within the window" in send.error
    report = json.loads(send(*command, *soon, "--json", code=1))
    assert (report["stored"], report["failed"], report["stopped"]) == (0, 500, True)
    assert not proxy.stored
    proxy.full = False
    report = json.loads(send(*command, "--json"))
    assert (report["stored"], report["failed"], report["stopped"]) == (2_000, 0, False)


def test_what_has_no_key_is_tried_to_the_end(send: SendCommand, proxy: Standin, tmp_path: Path) -> None:
    path = tmp_path / "many"
    path.write_bytes(b"x\n" * 1_200)
    proxy.full = True
    report = json.loads(send("--lines", str(path), "--timeout-ms", "100", "--json", code=1))
    assert (report["stored"], report["failed"], report["stopped"]) == (0, 1_200, False)


def test_all_messages_of_a_run_are_numbered(send: SendCommand, proxy: Standin) -> None:
    send("x", "y", "--repeat", "2", "--idempotency-key-prefix", "p")
    assert [message.idempotencyKey for message in proxy.stored] == ["p/1", "p/2", "p/3", "p/4"]


def test_what_a_level_delays_has_a_key_too(send: SendCommand, proxy: Standin) -> None:
    send("x", "--delay-level", "3", "--idempotency-key-prefix", "p")
    assert [message.idempotencyKey for message in proxy.stored] == ["p/1"]


def test_another_body_under_the_same_key_is_not_stored(send: SendCommand, proxy: Standin) -> None:
    proxy.faults["sendSync"].append(BEFORE)
    assert send("x", "--idempotency-key-prefix", "p").startswith("stored: queue 0, offset 0")
    assert send("x", "--idempotency-key-prefix", "p").startswith("there already: queue 0, offset 0")
    send("other", "--idempotency-key-prefix", "p")
    assert "there already with another body, which stays: 1" in send.error
    assert [message.body for message in proxy.stored] == [b"x"]


def test_without_a_prefix_no_message_has_a_key(send: SendCommand, proxy: Standin, lines: Path) -> None:
    for _ in range(2):
        report: dict[str, Any] = json.loads(send("--lines", str(lines), "--json"))
        assert (report["stored"], report["stored_before"]) == (3, 0)
    assert len(proxy.stored) == 6
    assert {message.idempotencyKey for message in proxy.stored} == {None}


@pytest.mark.parametrize(
    ("more", "error"),
    [
        (["--idempotency-key-prefix", ""], "0 characters; allowed: 1 to 235"),
        (["--idempotency-key-prefix", "x" * 236], "236 characters; allowed: 1 to 235"),
        (["--idempotency-key-prefix", "p", "--delay", "1h"], "stands beside a delay"),
    ],
)
def test_an_invalid_prefix_is_a_usage_error(
    send: SendCommand, proxy: Standin, more: list[str], error: str
) -> None:
    assert send("x", *more, code=2) == ""
    assert error in send.error
    assert not proxy.calls


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "PATIENCE_S", 0.05)


class Hints:
    """What is told on the way; a proxy that was found silent starts, one that was found refusing takes it."""

    def __init__(self, proxy: Standin) -> None:
        self.texts: list[str] = []
        self._proxy = proxy

    def __call__(self, text: str) -> None:
        self.texts.append(text)
        if text.startswith("no answer from"):
            self._proxy.restart()
        if text.startswith("not stored yet"):
            self._proxy.faults.clear()


@pytest.fixture
def hints(proxy: Standin, monkeypatch: pytest.MonkeyPatch) -> Hints:
    hints = Hints(proxy)
    monkeypatch.setattr(sending, "hint", hints)
    return hints


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("delayed", [(), ("--delay", "1h")])
def test_the_reason_of_a_rejection_is_shown_during_retries(
    send: SendCommand, proxy: Standin, hints: Hints, delayed: tuple[str, ...]
) -> None:
    proxy.faults["sendDelaySync" if delayed else "sendSync"].extend([refuse(15)] * 100_000)
    proxy.stop()
    send("x", "--timeout-ms", "60000", *delayed)
    texts = [text for text in hints.texts if "ddmq delay cancel" not in text]
    assert [text[:14] for text in texts] == ["no answer from", "`ddmq serve` s", "not stored yet"]
    assert "(code 15 by 127.0.0.1:" in texts[2]
    assert "trying again for 60,000 ms" in texts[2]


class RefusedProducer:
    """A producer whose message a proxy has refused, and which tries again."""

    last_error = ThrottledError("the disk is full", 15, "mq-1:9613")


@pytest.mark.usefixtures("impatient")
def test_a_proxy_that_rejects_is_not_reported_as_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    hints: list[str] = []
    has_hint = threading.Event()

    def hint(text: str) -> None:
        hints.append(text)
        has_hint.set()

    monkeypatch.setattr(sending, "hint", hint)
    patience = sending.Patience(HostPort("mq-1", 9613), 1_000, quiet=False)
    with patience.watch_request(cast(Producer, RefusedProducer())):
        assert has_hint.wait(60)
    assert hints == ["not stored yet: the disk is full (code 15 by mq-1:9613); trying again for 1,000 ms"]


def test_a_level_above_the_last_is_rejected(send: SendCommand, proxy: Standin) -> None:
    send("x", "--delay-level", "19", code=2)
    assert "--delay-level" in send.error
    assert proxy.stored == []
