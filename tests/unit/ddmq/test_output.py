"""Bodies, tables and the view of `ddmq stats`, as people read them."""

import re
from typing import Any

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from ddmq.cli.messages.pull import _queue_number
from ddmq.cli.operate.groups.group import GROUP_COLUMNS, GROUP_SPARE, group_cells
from ddmq.cli.operate.groups.group_show import stall_text
from ddmq.cli.operate.stats import LAG_COLUMNS, LAG_SPARE, build_view, lag_cells, nobody_text, print_lag
from ddmq.cli.output import (
    cell,
    count_queues,
    print_facts,
    print_table,
    print_verdict,
    reason,
    show_body,
    show_row_body,
    state_style,
    table,
)
from ddmq_common.plain_text import body_fields


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"plain", "plain"),
        ("é\tü".encode(), "é\\tü"),
        (b"a\r\nb", "a\\r\\nb"),
        (b"\x1b[2J\x7f", "\\x1b[2J\\x7f"),
        ("\x9b".encode(), "\\x9b"),
        (b"x" * 2_001, "x" * 2_000 + "… (2,001 bytes)"),
        (b"\xff\x00", "(2 bytes, binary: ff 00)"),
        (b"\xff" * 25, f"(25 bytes, binary: {' '.join(['ff'] * 24)} …)"),
        (b"", ""),
    ],
)
def test_a_body_is_one_line(body: bytes, shown: str) -> None:
    assert show_body(body) == shown
    assert show_row_body(body_fields(body)) == shown


def test_a_body_for_programs_is_whole() -> None:
    assert body_fields(b"x" * 10_000) == {"body": "x" * 10_000}
    assert body_fields(b"\x00\xff") == {"body_base64": "AP8="}


def test_cells_and_reasons() -> None:
    values = (None, True, 12_345, 1.25, "x")
    assert [cell(value) for value in values] == ["–", "yes", "12,345", "1.2", "x"]
    assert reason(ConnectionRefusedError(111, "Connection refused")) == "Connection refused"
    assert reason(TimeoutError()) == "TimeoutError"
    assert reason(ValueError("bad")) == "bad"


@pytest.mark.parametrize(("qid", "number"), [("R_default_a_3", 3), ("other", "other"), ("a_b", "a_b")])
def test_queues_by_number(qid: str, number: int | str) -> None:
    assert _queue_number(qid) == number


def latency(p99: float) -> dict[str, Any]:
    return {"count": 3, "mean": 1.0, "p50": 500.0, "p99": p99, "max": 2500.0}


def moment(at_ms: int, topics: int, groups: int, stored: int) -> dict[str, Any]:
    return {
        "at_ms": at_ms,
        "health": {"ready": True, "reason": ""},
        "topics": [
            {"topic": f"t{n}", "queues": 4, "messages": stored, "stored": stored * n, "internal": False}
            for n in range(topics)
        ],
        "groups": [
            {"group": f"g{n}", "topic": "t", "lag": n, "in_flight": 0, "retrying": 0, "dead_letters": 0}
            for n in range(groups)
        ],
        "counters": {
            "ddmq_acked_total": [{"group": "g1", "topic": "t", "value": stored}],
            "ddmq_log_sync_us": [latency(2000.0)],
            "ddmq_log_commit_bytes": [latency(7000.0)],
            "ddmq_hub_blocked_us": [latency(0.0) | {"count": 0}],
            "ddmq_send_latency_us": [latency(p99) | {"topic": f"t{p99:.0f}"} for p99 in (10.0, 3000.0, 20.0)],
        },
    }


def drawn(*arguments: Any) -> list[str]:
    console = Console(width=80)
    with console.capture() as captured:
        console.print(build_view(*arguments))
    return captured.get().splitlines()


def test_a_table_of_lag_fits_a_terminal_with_a_line_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddmq.cli.output.WIDE", 80)
    row = {
        "group": "billing", "topic": "orders", "lag": 12_345, "lag_age_s": 1_607.0, "clients": 2,
        "in_flight": 1_024, "retrying": 10, "retry_waiting": 3, "retry_waiting_whole": False,
        "delivered_per_s": 4_096.5, "acked_per_s": 4_096.5, "unfinished": 10_001, "arriving_per_s": 5_001.5,
        "finished_per_s": 4_096.5, "drain_s": None, "why": "slower-than-arrivals",
    }  # fmt: skip
    console = Console(width=80)
    with console.capture() as captured:
        console.print(table("", LAG_COLUMNS, lag_cells([row]), LAG_SPARE))
    lines = [" ".join(line.split()) for line in captured.get().splitlines()]
    assert lines == [
        "group topic lag oldest why clients in flight",
        "billing orders 12,345 26 m 47 s slower-than-arrivals 2 1,024",
    ]


def test_the_list_of_groups_has_their_clients_and_fits_80_columns() -> None:
    row = {
        "group": "billing", "topic": "orders-of-customers", "lag": 12_345, "clients": 2, "in_flight": 1_024,
        "retrying": 10, "retry_waiting": 3, "retry_waiting_whole": True, "dead_letters_open": 1,
        "ack_span": 4_096, "waiters": 16, "order_key": "$.order.id",
    }  # fmt: skip
    shown = {width: lines_of(width, [row]) for width in (80, 200)}
    assert max(map(len, shown[80])) <= 80
    assert shown[80][-1].split()[:5] == ["billing", "orders-of-customers", "12,345", "2", "1,024"]
    assert shown[200][-1].split()[-3:] == ["4,096", "16", "$.order.id"]
    del row["clients"]
    assert lines_of(200, [row])[-1].split()[3] == "–", "a server of the release before does not state them"


def lines_of(width: int, rows: list[dict[str, Any]]) -> list[str]:
    """The lines of `ddmq group list`."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ddmq.cli.output.WIDE", width)
        console = Console(width=width)
        with console.capture() as captured:
            console.print(table("", GROUP_COLUMNS, map(group_cells, rows), GROUP_SPARE))
    return [line.rstrip() for line in captured.get().splitlines()]


NAMES = (
    "web-shipping",
    "web-orders",
    "g" * 119,
    "t" * 127,
    "orders/1/0",
    '"order 17 of customer 4"',
    "a" * 250,
)


@pytest.mark.parametrize("columns", [20, 80, 200])
@pytest.mark.parametrize("prose", ["no customer", "ValueError: customer a has no address, " * 4, "x" * 90])
def test_no_name_in_a_table_is_broken_at_any_width(
    columns: int, prose: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ddmq.cli.output.WIDE", columns)
    rows = [[name, f"{index:,}", f"t-{name}", "4 m 20 s", prose] for index, name in enumerate(NAMES)]
    print_table("", ("key", "lag", "topic", "oldest", "last error"), rows)
    lines = capsys.readouterr().out.splitlines()
    for row in rows:
        assert [line for line in lines if all(text in line for text in row[:4])], (row, lines)
    for word in prose.split():
        assert any(word in line for line in lines)


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (128, {*LAG_SPARE, "in flight"}),
        (89, {"in flight", "retrying", "delivered/s", "acked/s", "why"}),
        (82, {"in flight", "retrying", "delivered/s", "acked/s"}),
        (80, {"in flight", "retrying", "delivered/s"}),
        (45, {"in flight"}),
        (20, {"in flight"}),
    ],
)
def test_columns_that_can_be_spared_give_way_to_names_those_without_a_number_first(
    columns: int, shown: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ddmq.cli.output.WIDE", columns)
    row = {
        "group": "web-shipping", "topic": "web-orders", "lag": 299, "lag_age_s": 44.0, "clients": 3,
        "in_flight": 1, "retrying": 2, "retry_waiting": 0, "retry_waiting_whole": True,
        "delivered_per_s": 1.0, "acked_per_s": 1.0,
    }  # fmt: skip
    print_lag([row])
    captured = capsys.readouterr()
    words = captured.out.split()
    assert {"group", "topic", "lag", "oldest", "clients", "web-shipping", "web-orders", "299"} <= set(words)
    spare = {name: name.replace("/", " /").split() for name in (*LAG_SPARE, "in flight")}
    assert {name for name, heading_words in spare.items() if set(heading_words) <= set(words)} == shown
    assert ("no room here" in captured.err) == (len(shown) <= len(LAG_SPARE))


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ({"unfinished": 4}, "4 messages wait, and"),
        ({"unfinished": 1}, "1 message waits, and"),
        ({"unfinished": None}, "11 messages wait, and"),
        ({}, "11 messages wait, and"),  # a server of the release before
    ],
)
def test_the_note_on_a_group_without_consumers_counts_unfinished_messages(
    counts: dict[str, Any], text: str
) -> None:
    assert nobody_text({"lag": 11} | counts).startswith(text)


def test_states_have_colours_on_a_terminal_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    built = table("", ("key", "state"), [["retrying", "retrying"], ["b", "in flight"], ["c", "unheard of"]])
    for colours, codes in ((True, {"33", "36"}), (False, set())):
        console = Console(width=80, force_terminal=True, color_system="standard", no_color=not colours)
        with console.capture() as captured:
            console.print(built)
        lines = captured.get().splitlines()[1:]
        assert {code for code in ("33", "36") if f"[{code}m" in "".join(lines)} == codes
        assert "[33m" not in lines[0].partition(" ")[0], "a key named like a state has none"
        assert "[" not in lines[2]
    assert [state_style(text) for text in ("ok", "NOT READY: x", "parked (operator)", "new")] == [
        "green", "bold red", "yellow", "",
    ]  # fmt: skip


def test_lines_have_colours_unless_no_color_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def show() -> None:
        print_verdict(True, "kept")
        print_facts({"state": "parked", "NOBODY CONSUMES": "3 wait", "key": "parked"})

    def run_shown() -> list[str]:
        return CliRunner().invoke(show, color=True).output.splitlines()

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert ["\x1b[" in line for line in run_shown()] == [True, True, True, False]
    monkeypatch.setenv("NO_COLOR", "1")
    assert run_shown()[0] == "✓ kept"
    assert not any("\x1b[" in line for line in run_shown())


@pytest.mark.parametrize("height", [24, 40, 60])
def test_the_view_fits_the_terminal(height: int) -> None:
    lines = drawn(moment(0, 30, 30, 0), moment(2_000, 30, 30, 10), height)
    assert len(lines) <= height
    assert any("more" in line for line in lines)
    assert max(map(len, lines)) <= 80


def findings(count: int) -> dict[str, Any]:
    item = {
        "id": "DdmqLagOld", "severity": "warning", "since_ms": -840_000, "labels": {}, "command": "ddmq lag",
        "text": "[red]billing[/] is \x1b[31m 14 min behind in " + "t" * 100,
    }  # fmt: skip
    return {"items": [item] * count, "missing": [], "left_out": {}, "unevaluated": []}


@pytest.mark.parametrize("count", [1, 3, 90])
@pytest.mark.parametrize("height", [24, 40, 60])
def test_the_view_fits_with_findings(height: int, count: int) -> None:
    lines = drawn(moment(0, 30, 30, 0), moment(2_000, 30, 30, 10) | {"findings": findings(count)}, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= 80
    assert any("`ddmq findings`" in line or "[red]billing[/] is" in line for line in lines)
    assert not any("\x1b" in line for line in lines)


def test_findings_come_first_and_in_full_where_nothing_is_cut() -> None:
    now = moment(2_000, 1, 1, 10) | {"findings": findings(2) | {"left_out": {"DdmqLagOld": 5}}}
    lines = drawn(None, now)
    assert lines[1].startswith("warning for 14 m 2 s: [red]billing[/] is")
    assert "… and 5 more findings: `ddmq findings`" in lines


@pytest.mark.parametrize("height", [24, 40, 60])
def test_the_view_fits_with_every_latency_there_is(height: int) -> None:
    now = moment(2_000, 30, 30, 10)
    for name in ("queue_wait", "process", "delay_lateness", "push_latency", "levels_lateness"):
        now["counters"][f"ddmq_{name}_us"] = [latency(9.0) | {"group": "g" * 100, "topic": "t" * 200}] * 50
    lines = drawn(moment(0, 30, 30, 0), now, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= 80


def test_a_latency_is_one_row_that_names_the_worst() -> None:
    text = "\n".join(drawn(None, moment(0, 1, 1, 0)))
    assert "send, request to answer (worst: t3000)" in text
    row = next(line for line in text.splitlines() if "t3000" in line).split()
    assert row[-4:] == ["9", "0.5", "3.0", "2.5"]
    assert "event loop" not in text, "nothing was observed"
    assert "commit_bytes" not in text, "not a time"


def test_the_busiest_come_first_with_their_rates() -> None:
    lines = drawn(moment(0, 3, 3, 0), moment(2_000, 3, 3, 10), 60)
    rows = [line.split() for line in lines if re.match(r"[tg]\d ", line)]
    assert rows[:3] == [["t2", "4", "10", "10.0"], ["t1", "4", "10", "5.0"], ["t0", "4", "10", "0.0"]]
    assert [(row[0], row[-1]) for row in rows[3:6]] == [("g1", "5.0"), ("g2", "0.0"), ("g0", "0.0")]


def test_one_moment_has_no_rates() -> None:
    text = "\n".join(drawn(None, moment(0, 1, 1, 0)))
    assert "/s" not in text
    assert "group commit, write and fsync" in text


@pytest.mark.parametrize(
    ("queues", "held_up_by", "text"),
    [
        ([0, 3], [], "STALLED: queues 0, 3 of orders have messages, clients wait for them"),
        ([2], [], "STALLED: queue 2 of orders has messages"),
        ([2], [], "nothing in flight, retrying or parked explains it"),
        ([0], ["old", "older"], "nobody pulls old, older: pull it, or delete the group's subscription"),
    ],
)
def test_queues_that_stand_still_are_told_in_words(
    queues: list[int], held_up_by: list[str], text: str
) -> None:
    each = {"topic": "orders", "queues": queues, "seconds": 95.0, "held_up_by": held_up_by}
    assert text in stall_text(each)


def test_one_queue_is_named_in_the_singular() -> None:
    assert [count_queues(count) for count in (1, 2, 1_000)] == ["1 queue", "2 queues", "1000 queues"]
