"""A client that may not do something learns that a right is missing, and how to log in if it has not."""

from __future__ import annotations

from ddmq_client import NoSuchTopicError, NotAllowedError, SendError
from ddmq_client.core.nodes import Node, ProxyAddress
from ddmq_client.core.sending import ResendPolicy, SendJob
from ddmq_client.outgoing import SendResult
from ddmq_client.wire.wording import explain_missing_login
from ddmq_common.security.policy import CLIENT, NOBODY, Identity, decide_right
from proxy_producer.rights import build_right_rejection

HOW = "token_file="


def reject(name: str) -> SendError | None:
    """Return the error of a send that a proxy rejects because the identity `name` has no right."""
    decision = decide_right(Identity(name, CLIENT), "send", "orders")
    rejection = build_right_rejection(decision.reason)
    job = SendJob([b"m"], False, 10.0, ResendPolicy())
    result = SendResult()
    result.code, result.text = int(rejection.code), rejection.text
    node = Node(ProxyAddress("a", 1))
    job.begin(node)
    job.take_results(node, [result], False)
    assert job.next_wait(0.0, True) is None
    return job.results[0].error


def test_a_missing_right_is_not_a_missing_topic() -> None:
    error = reject("billing")
    assert type(error) is NotAllowedError
    assert isinstance(error, NoSuchTopicError), "what catches one, catches the other as before"
    assert error.text.startswith("identity 'billing' lacks the right `send orders`")
    assert error.code == 13
    assert HOW not in error.text


def test_a_client_without_a_login_is_told_how_to_log_in() -> None:
    error = reject("")
    assert type(error) is NotAllowedError
    assert error.text.startswith("a connection without an identity lacks the right `send orders`")
    assert all(how in error.text for how in (HOW, "DDMQ_TOKEN_FILE", "client certificate", "profile="))


def test_a_pull_without_a_login_is_told_so_too() -> None:
    def explain(identity: Identity) -> str:
        return explain_missing_login(decide_right(identity, "consume", "billing").reason)

    assert HOW in explain(NOBODY)
    assert HOW not in explain(Identity("billing", CLIENT))
