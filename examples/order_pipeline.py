"""Handle the steps of each order in their order; park an order that fails, and let all others continue.

    ddmq serve --data-dir ./data
    ddmq group set shipping --topic order-steps --order-key KEY --on-dead-letter park \
        --ordered-deliveries-max 3 --retry-intervals-ms 50 --start first
    python examples/order_pipeline.py

Order 17 has no address, so its second step fails until the order is parked. `ddmq group keys shipping` shows
why. Then repair it, and deliver the rest of it in order:

    touch address-of-17 && ddmq group replay shipping 17
"""

import json
from pathlib import Path

from ddmq_client import Consumer, Message, Producer

STEPS = ("reserved", "packed", "shipped")
ORDERS = ("16", "17", "18")


def send_orders() -> None:
    """Send each step of all orders before the next one, as a busy shop does."""
    with Producer("127.0.0.1:9613") as producer:
        for step in STEPS:
            for order in ORDERS:
                body = json.dumps({"order": order, "step": step})
                producer.send("order-steps", body, key=order)


def handle_step(message: Message) -> None:
    """Print the step. Raises ValueError for an order without an address, which fails the message."""
    order = json.loads(message.body)
    if order["order"] == "17" and order["step"] == "packed" and not Path("address-of-17").exists():
        raise ValueError("order 17 has no address")
    print(f"order {order['order']}: {order['step']}", flush=True)


if __name__ == "__main__":
    send_orders()
    Consumer(
        "127.0.0.1:9713", "shipping", ["order-steps"], handler=handle_step
    ).run()  # until Ctrl-C or SIGTERM
