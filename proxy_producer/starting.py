"""What a producer proxy answers while its backend is not there yet: each send is refused at once, code 15."""

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


def starting(why: Callable[[], str], metrics: Registry) -> Service:
    """The service until the real one takes its place. `why`: the reason as it is now."""
    counts = SendCounts(metrics)

    def refused(messages: int) -> SendRefusal:
        fault = refusal(
            Code.BUSY, "starting", f"the server is starting: {why()}", "send it again, or to another proxy"
        )
        counts.refused(None, fault, messages)
        return fault

    def one(call: Call) -> None:
        call.reply(wire.refused(refused(1)))

    def delayed(call: Call) -> None:
        call.reply(wire.delay_refused(refused(1), b""))

    def together(call: Call) -> None:
        call.reply(wire.refused(refused(len(call.args.messages))))

    def each(call: Call) -> None:
        size = len(call.args.messages)
        call.reply([wire.refused(refused(size))] * size)

    def prepared(call: Call) -> None:
        size = len(call.args.request.messages or ())
        fault = refused(max(size, 1))
        results = [wire.refused(fault)] * size
        call.reply(IDL.PrepareResponse(code=int(fault.code), msg=fault.text, results=results))

    def ended(call: Call) -> None:
        fault = refused(0)
        call.reply(IDL.EndTransactionResponse(code=int(fault.code), msg=fault.text))

    def polled(call: Call) -> None:
        fault = refused(0)
        call.reply(IDL.PollChecksResponse(code=int(fault.code), msg=fault.text, checks=[]))

    handlers: dict[str, Handler] = {
        "sendSync": one, "sendAsync": one, "sendOneway": one, "sendBatchSync": together, "sendBatch": each,
        "sendDelaySync": delayed, "sendPrepared": prepared, "endTransaction": ended,
        "pollTransactionChecks": polled,
    }  # fmt: skip
    return Service(producer, wire.SERVICE, handlers)
