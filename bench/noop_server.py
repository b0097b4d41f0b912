"""A floor: our RPC server with a sendSync that stores nothing and answers OK at once."""

from __future__ import annotations

import sys

import gevent

from ddmq_client.idl import producer
from ddmq_common.clock import SystemClock
from ddmq_common.metrics.registry import Registry
from ddmq_rpc.api import Call, Service
from ddmq_rpc.codec import constant_result, structs
from ddmq_rpc.server import RpcServer
from ddmq_rpc.traffic import RpcLimits

SERVICE = "ProducerService"


def main() -> None:
    sys.setswitchinterval(0.0005)
    ok = constant_result(producer, SERVICE, "sendSync", success=structs(producer).Result(code=0, msg="OK"))

    def send_sync(call: Call) -> None:
        call.reply_encoded(ok[call.wire])

    service = Service(producer, SERVICE, {"sendSync": send_sync})
    server = RpcServer(service, "127.0.0.1", 0, RpcLimits(), Registry(), SystemClock())
    server.start()
    host, port = server.address
    print(f"ready producer={host}:{port}", flush=True)
    gevent.get_hub().join()


if __name__ == "__main__":
    main()
