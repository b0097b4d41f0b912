"""The answers of a producer proxy whose backend is not there yet: each send is rejected at once, code 15."""

from __future__ import annotations

from collections.abc import Callable

from ddmq_client.idl import producer
from ddmq_client.idl.codes import Code
from ddmq_common.metrics.registry import Registry
from ddmq_rpc.api import Call, Handler, MethodRule, Service
from ddmq_rpc.codec import structs
from proxy_producer import wire
from proxy_producer.core.rejections import SendRejection, build_rejection
from proxy_producer.counts import SendCounts

IDL = structs(producer)


def reject_sends(why: Callable[[], str], metrics: Registry) -> Service:
    """Return a service that rejects every send while the proxy starts. `why` returns the current reason."""
    counts = SendCounts(metrics)

    def count_rejected(messages: int) -> SendRejection:
        rejection = build_rejection(
            Code.BUSY, "starting", f"the server is starting: {why()}", "send it again, or to another proxy"
        )
        counts.count_rejected(None, rejection, messages)
        return rejection

    def reject_send(call: Call) -> None:
        call.reply(wire.rejected_result(count_rejected(1)))

    def reject_delay(call: Call) -> None:
        call.reply(wire.rejected_delay_result(count_rejected(1), b""))

    def reject_batch_sync(call: Call) -> None:
        call.reply(wire.rejected_result(count_rejected(len(call.args.messages))))

    def reject_batch(call: Call) -> None:
        size = len(call.args.messages)
        call.reply([wire.rejected_result(count_rejected(size))] * size)

    def reject_prepare(call: Call) -> None:
        size = len(call.args.request.messages or ())
        rejection = count_rejected(max(size, 1))
        results = [wire.rejected_result(rejection)] * size
        call.reply(IDL.PrepareResponse(code=int(rejection.code), msg=rejection.text, results=results))

    def reject_end(call: Call) -> None:
        rejection = count_rejected(0)
        call.reply(IDL.EndTransactionResponse(code=int(rejection.code), msg=rejection.text))

    def reject_poll(call: Call) -> None:
        rejection = count_rejected(0)
        call.reply(IDL.PollChecksResponse(code=int(rejection.code), msg=rejection.text, checks=[]))

    handlers: dict[str, Handler] = {
        "sendSync": reject_send,
        "sendAsync": reject_send,
        "sendOneway": reject_send,
        "sendBatchSync": reject_batch_sync,
        "sendBatch": reject_batch,
        "sendDelaySync": reject_delay,
        "sendPrepared": reject_prepare,
        "endTransaction": reject_end,
        "pollTransactionChecks": reject_poll,
    }
    rule = MethodRule(lambda _: None, lambda *_: None)  # nothing is stored or told
    return Service(producer, wire.SERVICE, handlers, rules=dict.fromkeys(handlers, rule))
