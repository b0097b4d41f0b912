"""The answers of a producer proxy whose backend is not there yet: each send is refused at once, code 15."""

from __future__ import annotations

from collections.abc import Callable

from ddmq_client.idl import producer
from ddmq_client.idl.codes import Code
from ddmq_common.metrics.registry import Registry
from ddmq_rpc.api import Call, Handler, Service
from ddmq_rpc.codec import structs
from proxy_producer import wire
from proxy_producer.core.refusals import SendRefusal, refusal
from proxy_producer.counts import SendCounts

IDL = structs(producer)


def refuse_sends(why: Callable[[], str], metrics: Registry) -> Service:
    """Return a service that refuses every send while the proxy starts. `why` returns the current reason."""
    counts = SendCounts(metrics)

    def count_refused(messages: int) -> SendRefusal:
        fault = refusal(
            Code.BUSY, "starting", f"the server is starting: {why()}", "send it again, or to another proxy"
        )
        counts.count_refused(None, fault, messages)
        return fault

    def refuse_send(call: Call) -> None:
        call.reply(wire.refused_result(count_refused(1)))

    def refuse_delay(call: Call) -> None:
        call.reply(wire.refused_delay_result(count_refused(1), b""))

    def refuse_whole_batch(call: Call) -> None:
        call.reply(wire.refused_result(count_refused(len(call.args.messages))))

    def refuse_batch(call: Call) -> None:
        size = len(call.args.messages)
        call.reply([wire.refused_result(count_refused(size))] * size)

    def refuse_prepare(call: Call) -> None:
        size = len(call.args.request.messages or ())
        fault = count_refused(max(size, 1))
        results = [wire.refused_result(fault)] * size
        call.reply(IDL.PrepareResponse(code=int(fault.code), msg=fault.text, results=results))

    def refuse_end(call: Call) -> None:
        fault = count_refused(0)
        call.reply(IDL.EndTransactionResponse(code=int(fault.code), msg=fault.text))

    def refuse_poll(call: Call) -> None:
        fault = count_refused(0)
        call.reply(IDL.PollChecksResponse(code=int(fault.code), msg=fault.text, checks=[]))

    handlers: dict[str, Handler] = {
        "sendSync": refuse_send,
        "sendAsync": refuse_send,
        "sendOneway": refuse_send,
        "sendBatchSync": refuse_whole_batch,
        "sendBatch": refuse_batch,
        "sendDelaySync": refuse_delay,
        "sendPrepared": refuse_prepare,
        "endTransaction": refuse_end,
        "pollTransactionChecks": refuse_poll,
    }
    return Service(producer, wire.SERVICE, handlers)
