"""A token that was revoked: commands and clients say so, and look for no server that is down."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddmq_client import Consumer, LoginError, Producer, SendError
from ddmq_common.security.files import TOKENS_FILE, write_tokens
from tests.scenarios.real_server import RealServer, ddmq, write_config
from tests.support.rights import Who, write_rights
from tests.support.waits import until

pytestmark = pytest.mark.slow
RIGHTS = (("send", "mine"), ("consume", "mine"), ("consume", "crew"), ("create", "crew"))
REASON = "the token is not known, or it has expired or was revoked"
REJECTED = f"the login was rejected: {REASON}"


class RevokingServer:
    """A server with rights, and the token of an identity in a file."""

    def __init__(self, folder: Path) -> None:
        self.conf = write_config(folder / "conf", topics={"topics": {"mine": {"queues": 1}}})
        tokens = write_rights(self.conf, [Who("app", frozenset(RIGHTS))])
        self.token_file = folder / "app.token"
        self.token_file.touch(0o600)
        self.token_file.write_text(tokens["app"])
        self.server = RealServer(folder, self.conf)
        self.server.start()
        self.producer = f"127.0.0.1:{self.server.ports['producer']}"
        self.consumer = f"127.0.0.1:{self.server.ports['consumer']}"
        self.admin = f"127.0.0.1:{self.server.ports['admin']}"

    def send(self) -> None:
        with Producer(self.producer, token_file=self.token_file) as producer:
            producer.send("mine", b"tea")

    def is_rejected(self) -> bool:
        """Whether a send is rejected; its connection may be closed while the token is being revoked."""
        try:
            self.send()
        except SendError as error:
            return isinstance(error, LoginError)
        return False

    def revoke(self) -> None:
        write_tokens(self.conf / TOKENS_FILE, {})


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[RevokingServer]:
    secured = RevokingServer(tmp_path)
    yield secured
    secured.server.end()


def test_commands_say_that_the_token_was_revoked(
    secured: RevokingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    secured.send()
    secured.revoke()
    until(secured.is_rejected, "the token is revoked")
    monkeypatch.setenv("DDMQ_TOKEN_FILE", os.fspath(secured.token_file))
    for command in (
        ("send", "mine", "tea", "--producer", secured.producer),
        ("delay", "add", "mine", "tea", "--delay", "5m", "--producer", secured.producer),
        ("pull", "mine", "--group", "crew", "--consumer", secured.consumer, "--admin", secured.admin),
    ):
        done = ddmq(*command)
        assert done.returncode == 1
        assert REASON in done.stderr
        assert "ddmq serve" not in done.stderr
        assert "no answer from" not in done.stderr


def test_a_consumer_with_a_revoked_token_does_not_start(secured: RevokingServer) -> None:
    secured.revoke()
    until(secured.is_rejected, "the token is revoked")
    consumer = Consumer(secured.consumer, "crew", "mine", handler=print, token_file=secured.token_file)
    with pytest.raises(LoginError, match=REJECTED):
        consumer.run()


def test_a_running_consumer_says_that_its_token_was_revoked(
    secured: RevokingServer, caplog: pytest.LogCaptureFixture
) -> None:
    secured.send()
    errors: list[Exception] = []
    with Consumer(
        secured.consumer,
        "crew",
        "mine",
        handler=print,
        start="first",
        token_file=secured.token_file,
        on_error=errors.append,
    ) as consumer:
        until(lambda: consumer.counts().acked, "a message was handled")
        secured.revoke()
        until(lambda: any(isinstance(error, LoginError) for error in errors), "on_error was called")
        assert REJECTED in caplog.text


def test_a_pull_says_that_the_token_was_revoked(secured: RevokingServer) -> None:
    with Consumer(secured.consumer, "crew", "mine", token_file=secured.token_file) as consumer:
        assert consumer.pull(timeout_ms=100) == []
        secured.revoke()
        until(secured.is_rejected, "the token is revoked")

        def pull() -> LoginError | None:
            try:
                consumer.pull(timeout_ms=200)
            except LoginError as error:
                return error
            return None

        assert REJECTED in str(until(pull, "a pull is rejected"))
