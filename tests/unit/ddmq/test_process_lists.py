"""The processes and clients of several processes as lists in pages: each item once, in every order."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.memory import MemoryBackend
from ddmq.server.admin.contract.queries import ClientsQuery, ListQuery
from ddmq.server.admin.contract.route import Route
from ddmq.server.admin.contract.structs.answers import UsageRow
from ddmq.server.admin.figures import OtherAnswers, OtherProcesses
from ddmq.server.admin.processes import usage
from ddmq.server.admin.processes.usage import merge_usage, page_usage
from ddmq.server.admin.processes.views import ProcessInfo, ProcessViews
from ddmq.server.admin.routes import ROUTES
from ddmq.server.http.paging import PageRequest
from ddmq.server.http.parameters import Query, read_query
from ddmq.server.http.routing import AdminRequest
from ddmq_common.clock import ManualClock
from ddmq_common.errors import CallerError
from proxy_consumer.groups.consistency import GroupClient

QUERIES: dict[str, type[Query]] = {"/clients": ClientsQuery, "/processes": ListQuery}
Client = tuple[str, str, str, str]  # group, client id, process, address
HOST = "127.0.0.1"  # of all consumers
SILENT = {"lost": "127.0.0.1:1"}


class StubConsumer:
    """A consumer proxy with these clients, by group."""

    def __init__(self, groups: Mapping[str, list[str]]) -> None:
        self._groups = groups

    def groups_with_clients(self) -> list[str]:
        return list(self._groups)

    def clients(self, group: str) -> list[GroupClient]:
        return [GroupClient(name, HOST, 1, 0.0, ("t",), 0) for name in self._groups.get(group, ())]

    def count_owned_queues(self) -> dict[tuple[str, str], int]:
        return {}


class LinkedViews(ProcessViews):
    """The views of a process that asks the others without a network. `silent`: those that do not answer."""

    def __init__(self, name: str, groups: Mapping[str, list[str]], hosts: list[str]) -> None:
        self.others: list[LinkedViews] = []
        self.silent: dict[str, str] = {}
        clock = ManualClock()
        info = ProcessInfo(
            name, f"{name}-1", ["consumer"], 1, list_peers=lambda: [f"{host}:1" for host in hosts]
        )
        consumer: Any = StubConsumer(groups)
        super().__init__(MemoryBackend(clock), consumer, None, clock, OtherProcesses(), list, info)

    def fetch_answers(self, path: str, *keys: str, query: Any = None, caller: Any = None) -> OtherAnswers:
        answers = [each.answer(path, {**(query or {})}, is_forwarded=True) for each in self.others]
        assert all(answer.keys() >= set(keys) for answer in answers)
        return OtherAnswers(answers, self.silent)

    def answer(self, path: str, texts: Mapping[str, Any], *, is_forwarded: bool = False) -> dict[str, Any]:
        query = read_query(QUERIES[path], {name: str(text) for name, text in texts.items()})
        request = AdminRequest({}, query, None, "GET", path, is_forwarded)
        answer = route_of(path).answer_request(SimpleNamespace(processes=self), request)
        return dict(msgspec.json.decode(msgspec.json.encode(answer)))


def route_of(path: str) -> Route:
    (route,) = [each for each in ROUTES if (each.method, each.path) == ("GET", path)]
    return route


def link(views: list[LinkedViews]) -> LinkedViews:
    views[0].others = views[1:]
    return views[0]


def walk_clients(views: LinkedViews, **query: Any) -> list[Client]:
    """All clients, page after page."""
    clients: list[Client] = []
    while True:
        answer = views.answer("/clients", query)
        assert len(answer["items"]) <= query.get("count", 100)
        clients += [
            (row.get("group", ""), row.get("client_id", ""), row["process"], row["address"])
            for row in answer["items"]
        ]
        if answer.get("next") is None:
            return clients
        query["after"] = answer["next"]


NAMES = st.lists(st.sampled_from("abcdef"), unique=True, max_size=5)
PROCESSES = st.lists(
    st.tuples(st.dictionaries(st.sampled_from(["g1", "g2", "h"]), NAMES, max_size=3), NAMES),
    min_size=1, max_size=3,
)  # fmt: skip


@given(
    processes=PROCESSES,
    form=st.sampled_from([1, 2]),
    count=st.integers(1, 4),
    sort=st.sampled_from(["group", "-group"]),
    text=st.sampled_from([None, "g", "a", "p1"]),
    group=st.sampled_from([None, "g1"]),
)
def test_every_client_of_every_process_is_listed_once(
    processes: list[tuple[dict[str, list[str]], list[str]]],
    form: int, count: int, sort: str, text: str | None, group: str | None,
) -> None:  # fmt: skip
    views = link([LinkedViews(f"p{n}", groups, hosts) for n, (groups, hosts) in enumerate(processes)])
    expected: list[Client] = []
    for number, (groups, hosts) in enumerate(processes):
        process = f"p{number}"
        expected += [(name, each, process, HOST) for name, clients in groups.items() for each in clients]
        expected += [("", "", process, host) for host in hosts]
    if group is not None:
        expected = [client for client in expected if client[0] == group]
    query: dict[str, Any] = {"count": count} | ({"group": group} if group else {})
    if form == 1:
        assert walk_clients(views, **query) == sorted(expected)
        return
    query |= {"form": 2, "sort": sort} | ({"text": text} if text else {})
    matches = [client for client in expected if text is None or any(text in each for each in client)]
    assert walk_clients(views, **query) == sorted(matches, reverse=sort[0] == "-")
    assert views.answer("/clients", query)["total"] == len(matches)


def test_clients_of_other_processes_are_not_lost_behind_a_full_page() -> None:
    views = link([LinkedViews("consumer", {}, []), LinkedViews("producer", {}, ["a", "b", "c"])])
    assert [client[3] for client in walk_clients(views, count=2)] == ["a", "b", "c"]
    assert views.answer("/clients", {"count": 3})["next"] is None


def test_fields_of_a_page_come_from_all_processes() -> None:
    views = link([LinkedViews("one", {"g": ["a"]}, []), LinkedViews("two", {"g": ["b"]}, ["h"])])
    answer = views.answer("/clients", {"form": 2, "fields": "client_id"})
    assert answer["items"] == [{}, {"client_id": "a"}, {"client_id": "b"}]
    assert (answer["total"], answer["exact"], answer["missing"]) == (3, True, {})


def test_processes_are_listed_in_pages_and_searched() -> None:
    views = link([LinkedViews(name, {}, []) for name in ("consumer", "producer", "delay-service")])
    first = views.answer("/processes", {"form": 2, "count": 2, "sort": "-name"})
    assert [row["name"] for row in first["items"]] == ["producer", "delay-service"]
    rest = views.answer("/processes", {"form": 2, "count": 2, "sort": "-name", "after": first["next"]})
    assert ([row["name"] for row in rest["items"]], rest["total"], "next" in rest) == (["consumer"], 3, False)
    found = views.answer("/processes", {"form": 2, "text": "delay", "fields": "name"})
    assert (found["items"], found["total"]) == ([{"name": "delay-service"}], 1)
    assert [row["name"] for row in views.answer("/processes", {})["items"]] == [
        "consumer", "delay-service", "producer",
    ]  # fmt: skip


@pytest.mark.parametrize("path", ["/clients", "/processes"])
def test_a_silent_process_is_missing(path: str) -> None:
    views = LinkedViews("one", {}, [])
    views.silent = SILENT
    for form in (1, 2):
        answer = views.answer(path, {"form": form})
        assert (answer["exact"], answer["missing"]) == (False, SILENT)


def test_names_of_form_2_are_rejected_in_form_1() -> None:
    processes, clients = route_of("/processes").listing, route_of("/clients").listing
    assert processes is not None
    assert clients is not None
    for listing, name in ((processes, "count"), (processes, "text"), (clients, "sort")):
        with pytest.raises(CallerError, match="add form=2"):
            listing.check_form(1, [name])
    clients.check_form(1, ["count", "after", "group"])
    processes.check_form(1, ["fields"])  # as in earlier releases


def test_usage_is_added_up_by_identity() -> None:
    def row(identity: str, number: int, **rejected: int) -> dict[str, Any]:
        fields = dict.fromkeys(UsageRow.__struct_fields__, number)
        return {**fields, "identity": identity, "rejected": rejected}

    first = [row("app", 3, bytes_per_s=2), row("other", 9)]
    merged = merge_usage([first, [row("app", 4, bytes_per_s=1, created=5)], []])
    assert [(each["identity"], each["requests"], each["in_flight"]) for each in merged] == [
        ("other", 9, 9), ("app", 7, 7),
    ]  # fmt: skip
    assert merged[1]["rejected"] == {"bytes_per_s": 3, "created": 5}
    assert first[0]["rejected"] == {"bytes_per_s": 2}, "the rows of the processes are not changed"


def test_clients_without_an_identity_are_added_up_although_form_2_leaves_it_out() -> None:
    row = {"requests": 2, "rejected": {}}
    assert merge_usage([[{"identity": "", **row}], [row], [row]]) == [
        {"identity": "", "requests": 6, "rejected": {}}
    ]
    assert merge_usage([[], [row]])[0]["identity"] == ""


def test_another_process_gets_the_usage_of_all_identities(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"identity": f"app-{number:04}"} for number in range(1_500)]
    monkeypatch.setattr(usage, "list_usage", lambda _: rows)
    nobody: Any = SimpleNamespace(callers=None)
    pages = {
        forwarded: page_usage(
            nobody, nobody, AdminRequest({}, ListQuery(), {}, is_forwarded=forwarded), PageRequest(size=50)
        )
        for forwarded in (False, True)
    }
    assert [len(page.items) for page in pages.values()] == [50, 1_500]
    assert [page.next is None for page in pages.values()] == [False, True]
