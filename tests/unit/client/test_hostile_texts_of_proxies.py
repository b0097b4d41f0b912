"""What a hostile proxy says is short and printable in everything that carries it to the application."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thriftpy2.protocol.compact import TCompactProtocol
from thriftpy2.thrift import TApplicationException, TMessageType
from thriftpy2.transport import TMemoryBuffer

from ddmq_client import errors
from ddmq_client.core import frames, verdicts
from ddmq_client.idl import consumer as consumer_idl
from ddmq_client.idl import producer as producer_idl
from ddmq_client.notifications import ConsumerNotifications
from ddmq_client.printable import TEXT_CHARS_MAX, printable
from ddmq_client.wire import consuming, producing, replying, transactions

HOSTILE = "\x1b[31mfine\r\n2026-11-28 forged line\x00\u202edrow\u2028" + "é" * 5_000_000
CODES = (10, 11, 13, 15, 20, 38, 99)


def answer(method: str, result: Any, kind: int = TMessageType.REPLY) -> bytes:
    buffer = TMemoryBuffer()
    writer = TCompactProtocol(buffer)
    writer.write_message_begin(method, kind, 1)
    result.write(writer)
    payload: bytes = buffer.getvalue()
    return payload


def is_harmless(text: str) -> bool:
    return len(text) <= TEXT_CHARS_MAX + 100 and text.replace("\u3000", "").isprintable()


ERRORS = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.ProxyError)
]  # fmt: skip


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_of_a_proxy(kind: type[errors.ProxyError]) -> None:
    error = kind(HOSTILE, "id") if issubclass(kind, errors.TransactionError) else kind(HOSTILE, 11, "a:1")
    assert is_harmless(str(error))
    assert is_harmless(error.text)
    assert "\\x1b[31mfine\\r\\n" in str(error)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("method", ["sendSync", "sendBatch", "sendDelaySync"])
def test_results_of_sends(method: str, code: int) -> None:
    kind = producer_idl.DelayResult if method == "sendDelaySync" else producer_idl.Result
    result = kind(code=code, msg=HOSTILE)
    wire = getattr(producer_idl.ProducerService, method + "_result")()
    wire.success = [result] if method == "sendBatch" else result
    (read,) = producing.read_results(answer(method, wire), 1, method.encode())
    assert read.code == code
    assert is_harmless(read.text)


@pytest.mark.parametrize("code", CODES)
def test_answers_about_transactions_and_replies(code: int) -> None:
    service = producer_idl.ProducerService
    prepared = producer_idl.PrepareResponse(code=code, msg=HOSTILE)
    payload = answer("sendPrepared", service.sendPrepared_result(success=prepared))
    assert is_harmless(transactions.read_prepared(payload, 1, b"sendPrepared")[0].text)
    response = producer_idl.EndTransactionResponse(code=code, msg=HOSTILE)
    payload = answer("endTransaction", service.endTransaction_result(success=response))
    assert is_harmless(transactions.read_end_result(payload, 1, b"endTransaction")[0].text)
    polled = producer_idl.PollChecksResponse(code=code, msg=HOSTILE)
    payload = answer("pollTransactionChecks", service.pollTransactionChecks_result(success=polled))
    assert is_harmless(transactions.read_checks(payload, 1)[1])
    reply = consumer_idl.ReplyResponse(code=code, msg=HOSTILE)
    payload = answer("reply", consumer_idl.ConsumerService.reply_result(success=reply))
    assert is_harmless(replying.read_reply(payload, 1).text)


def test_exceptions_in_place_of_an_answer() -> None:
    exception = answer("sendSync", TApplicationException(6, HOSTILE), TMessageType.EXCEPTION)
    with pytest.raises(producing.ProxyCallError) as caught:
        producing.read_results(exception, 1, producing.SEND_ONE)
    assert is_harmless(str(caught.value))
    assert is_harmless(caught.value.text)
    refused = consumer_idl.ConsumerService.pull_result(
        error=consumer_idl.PullException(code=11, message=HOSTILE)
    )
    with pytest.raises(errors.PullError) as rejection:
        consuming.read_pulled(answer("pull", refused), 1)
    assert is_harmless(str(rejection.value))
    for error in (verdicts.CallFailed(verdicts.CallVerdict.LOST, HOSTILE), frames.FrameError(HOSTILE)):
        assert is_harmless(str(error))


def test_what_is_logged_of_a_proxys_notice(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="ddmq_client"):
        ConsumerNotifications().log_notice("a:1", HOSTILE)
    assert all(is_harmless(record.getMessage()) for record in caplog.records)
    assert len(caplog.records) == 1


@given(st.text())
def test_any_text_is_made_printable_once(text: str) -> None:
    printed = printable(text)
    assert len(printed) <= TEXT_CHARS_MAX
    assert "\n" not in printed
    assert printable(printed) == printed


@pytest.mark.parametrize("text", ["", "no such topic 'a'", "主题\u3000不存在", "größer"])
def test_what_is_printable_stays(text: str) -> None:
    assert printable(text) == text
