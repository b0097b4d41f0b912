"""T23: what tracing costs, sendSync and pull 100 with acknowledgements: off, 1 in 1,000, 1 in 100, every one.

The floor is the same load with tracing off, in the same run, on the same server; the figure is the server's
processor time for each message, what stores the events included. What does not fit a bound is dropped, so
"every" says what the most costs. Pulled topics are sent to untraced: their group alone is traced.
"""

from __future__ import annotations

from contextlib import ExitStack

from bench import groups
from bench.harness import CLIENT_CORE, Series, pin, run, sized
from bench.servers import Running, ddmq
from bench.t02_batch import fill
from bench.t03_pull import BATCH, MESSAGES, Consumers, consume
from bench.t21_once import Sends, nothing

CALLS = sized(40_000, 640)
BODY = 1024
ONE_IN = {"off": 0, "1 in 1,000": 1_000, "1 in 100": 100, "every": 1}
REACH = "≤ 1.10 of the floor"


class TracedSends(Sends):
    """Sends of one topic, traced like that."""

    def __init__(self, server: Running, one_in: int) -> None:
        super().__init__("sendSync", nothing)
        self.topic = b"traced-%d" % one_in
        groups.send_once(server, self.topic)
        path = f"/topics/{self.topic.decode()}"
        groups.admin(server, "POST", path, {"create": False, "trace_one_in": one_in})


def sends(server: Running, name: str, one_in: int) -> Series:
    traced = TracedSends(server, one_in)
    traced.measure(server, 256)

    def measure() -> dict[str, float]:
        figures = traced.measure(server, CALLS)
        return {"cpu_us": figures.pop("cpu_us")} | figures

    return compared("sendSync", name, Series(f"sendSync, {name}", measure))


def pulls(server: Running, name: str, one_in: int) -> Series:
    topic = b"pulled-%d" % one_in
    groups.establish(server, topic, topic, trace_one_in=one_in)

    def measure() -> dict[str, float]:
        fill(server, topic, BODY, MESSAGES // BATCH)
        figures = consume(server, topic, Consumers(topic, topic, MESSAGES))
        return {"cpu_us": figures.pop("cpu_us")} | figures

    return compared("pull", name, Series(f"pull, {name}", measure))


def compared(what: str, name: str, one: Series) -> Series:
    if name != "off":
        one.floor, one.reach = f"{what}, off", REACH if name == "1 in 1,000" else ""
    return one


def main() -> None:
    pin(CLIENT_CORE)
    with ExitStack() as stack:
        server = stack.enter_context(ddmq())
        every = [kind(server, *how) for kind in (sends, pulls) for how in ONE_IN.items()]
        run("t23_story", __doc__ or "", every, calls=CALLS, messages=MESSAGES, one_in=ONE_IN)


if __name__ == "__main__":
    main()
