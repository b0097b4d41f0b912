"""Rights on the admin port of real servers: every route by every identity."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddmq.server.admin.routes import ROUTES
from ddmq_client.idl.codes import DelayAction
from tests.scenarios.secured_servers import LAYOUTS, SecuredServers, secured
from tests.support.rights import AdminClient, Need, P, everybody
from tests.support.waits import until

pytestmark = pytest.mark.slow
PEOPLE = everybody()
ABSENT = "0" * 32
RETRY_CHANGE = {
    "group": "team", "action": "now", "level": 1, "messages": [{"offset": 0, "id": ABSENT}], "dry_run": True,
}  # fmt: skip
OPEN, METRICS = set[Need](), {("metrics", "")}


class Attempt:
    """One request and the rights that it needs; `needs` None: all names, which only an administrator has."""

    def __init__(
        self, method: str, route: str, needs: set[Need] | None, path: tuple[str, ...], query: str = "",
        body: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.method, self.route, self.needs = method, route, needs
        self.path, self.query, self.body = path, query, body


def on_topic(method: str, route: str, right: str, *rest: str, query: str = "", **body: Any) -> Attempt:
    return Attempt(method, route, {(right, "mine")}, ("topics", "mine", *rest), query, body or None)


def on_group(method: str, route: str, right: str, *rest: str, query: str = "", **body: Any) -> Attempt:
    return Attempt(method, route, {(right, "team")}, ("groups", "team", *rest), query, body or None)


def plain(route: str, needs: set[Need] | None, query: str = "") -> Attempt:
    return Attempt("GET", route, needs, tuple(route.strip("/").split("/")), query)


ATTEMPTS: list[Attempt] = [
    plain("/health", OPEN),
    plain("/ready", OPEN),
    plain("/openapi.json", OPEN),
    plain("/metrics", METRICS),
    plain("/stats", METRICS),
    plain("/findings", METRICS),
    plain("/usage", METRICS),
    plain("/snapshot", METRICS),
    plain("/history", METRICS),
    plain("/topics", OPEN),
    plain("/topics", None, "internal=1"),
    plain("/groups", OPEN),
    plain("/lag", OPEN),
    plain("/lag", {("describe", "team")}, "group=team"),
    plain("/keys", None),
    plain("/keys", {("describe", "team")}, "group=team"),
    plain("/dlq", OPEN),
    plain("/transactions", None),
    plain("/transactions", {("describe", "pay")}, "group=pay"),
    plain("/delay", OPEN),
    plain("/delay/messages", OPEN),
    plain("/delay/messages", {("describe", "mine")}, "topic=mine"),
    plain("/delay/count", OPEN),
    plain("/delay/count", {("describe", "mine")}, "topic=mine"),
    plain("/delay/levels", None),
    plain("/delay/messages", {("browse", "mine")}, "topic=mine&key=k"),
    plain("/delay/count", {("browse", "mine")}, "topic=mine&key=k"),
    plain("/delay/histogram", None),
    plain("/delay/histogram", {("describe", "mine")}, "topic=mine"),
    plain("/operations", OPEN),
    plain("/changes", OPEN),
    plain("/auth", OPEN),
    plain("/auth/identities", OPEN),
    plain("/auth/tokens", OPEN),
    plain("/auth/explain", None, "identity=server&right=metrics"),
    plain("/auth/audit", None),
    Attempt("POST", "/auth/tokens", None, ("auth", "tokens"), "", {"identity": "nothing"}),
    Attempt("DELETE", "/auth/tokens/{id}", None, ("auth", "tokens", ABSENT[:24])),
    plain("/processes", METRICS),
    plain("/config", METRICS),
    plain("/log", METRICS),
    plain("/clients", OPEN),
    plain("/clients", {("describe", "team")}, "group=team"),
    plain("/keys", {("browse", "team")}, "group=team&text=x"),
    plain("/retries", {("browse", "team")}, "group=team"),
    Attempt("POST", "/retries", {("operate", "team")}, ("retries",), "", RETRY_CHANGE),
    Attempt("POST", "/log/clean", None, ("log", "clean"), "", {"before_ms": 0, "dry_run": True}),
    on_topic("POST", "/topics/{topic}/search", "browse", "search", text="x"),
    on_topic("GET", "/topics/{topic}", "describe"),
    Attempt("GET", "/topics/{topic}", None, ("topics", "%DELAY")),
    Attempt("POST", "/topics/{topic}", {("create", "fresh")}, ("topics", "fresh"), "", {"queues": 0}),
    on_topic("POST", "/topics/{topic}", "manage", queues=0),
    Attempt("DELETE", "/topics/{topic}", {("manage", "band")}, ("topics", "band")),
    on_topic("GET", "/topics/{topic}/messages", "browse", "messages"),
    Attempt(
        "GET",
        "/topics/{topic}/messages",
        {("browse", "mine"), ("describe", "team")},
        ("topics", "mine", "messages"),
        "group=team",
    ),
    Attempt("GET", "/topics/{topic}/messages", {("browse", "team")}, ("topics", "%DLQ%team", "messages")),
    Attempt("GET", "/topics/{topic}/messages", None, ("topics", "%DELAY", "messages")),
    on_topic("GET", "/topics/{topic}/story", "browse", "story", query=f"id={ABSENT}"),
    Attempt("POST", "/messages", {("send", "mine")}, ("messages",), "", {"topic": "mine", "body": "x"}),
    Attempt(
        "POST", "/messages", {("send", "fresh"), ("create", "fresh")}, ("messages",), "", {"topic": "fresh"}
    ),
    Attempt(
        "POST",
        "/messages",
        {("send", "mine"), ("relay", "")},
        ("messages",),
        "",
        {"topic": "mine", "body": "x", "properties": {"from_chronos": "from_chronos"}},
    ),
    Attempt("GET", "/messages/{id}", OPEN, ("messages", ABSENT)),
    Attempt("GET", "/messages/{id}", {("describe", "team")}, ("messages", ABSENT), "group=team"),
    Attempt(
        "GET", "/messages/{id}/story", {("describe", "team")}, ("messages", ABSENT, "story"), "group=team"
    ),
    on_group("GET", "/groups/{group}", "describe"),
    Attempt(
        "POST",
        "/groups/{group}",
        {("create", "band"), ("consume", "mine")},
        ("groups", "band"),
        "",
        {"topics": ["mine"], "batch_max": 0},
    ),
    Attempt(
        "POST",
        "/groups/{group}",
        {("create", "band"), ("consume", "mine"), ("push", "")},
        ("groups", "band"),
        "",
        {"topics": ["mine"], "actions": ["nonsense"]},
    ),
    Attempt(
        "POST",
        "/groups/{group}/topics/{topic}",
        {("manage", "team"), ("consume", "mine")},
        ("groups", "team", "topics", "mine"),
        "",
        {"batch_max": 0},
    ),
    Attempt(
        "POST",
        "/groups/{group}/topics/{topic}",
        {("manage", "team"), ("consume", "mine"), ("push", "")},
        ("groups", "team", "topics", "mine"),
        "",
        {"push": {"url": "x"}},
    ),
    Attempt("DELETE", "/groups/{group}", {("manage", "band")}, ("groups", "band")),
    on_group("GET", "/groups/{group}/offsets", "describe", "offsets"),
    on_group("POST", "/groups/{group}/offsets", "operate", "offsets", topic="mine", to="first", dry_run=True),
    on_group("GET", "/groups/{group}/keys", "describe", "keys"),
    on_group("POST", "/groups/{group}/keys", "operate", "keys", action="park", key="k"),
    Attempt("GET", "/dlq/{group}", {("describe", "team")}, ("dlq", "team")),
    Attempt("GET", "/dlq/{group}", {("browse", "team")}, ("dlq", "team"), "text=x"),
    Attempt("GET", "/dlq/{group}/facets", {("describe", "team")}, ("dlq", "team", "facets")),
    Attempt("GET", "/dlq/{group}/facets", {("browse", "team")}, ("dlq", "team", "facets"), "text=x"),
    Attempt("GET", "/dlq/{group}/export", {("browse", "team")}, ("dlq", "team", "export")),
    Attempt(
        "POST",
        "/dlq/{group}/resend",
        {("operate", "team"), ("send", "mine")},
        ("dlq", "team", "resend"),
        "",
        {"topic": "mine", "dry_run": True},
    ),
    Attempt(
        "POST",
        "/dlq/{group}/purge",
        {("operate", "team")},
        ("dlq", "team", "purge"),
        "",
        {"all": True, "dry_run": True},
    ),
    Attempt(
        "POST",
        "/delay/backup",
        {("node", "")},
        ("delay", "backup"),
        "",
        {"folder": "x", "shards": [0], "secret": "x"},
    ),
    Attempt("POST", "/delay/backup", {("backup", "")}, ("delay", "backup"), "", {"folder": "/"}),
    Attempt(
        "POST",
        "/operations",
        {("operate", "team"), ("send", "mine")},
        ("operations",),
        "",
        {"kind": "dead_letters", "action": "resend", "filter": {"group": "team", "topic": "mine"}},
    ),
    Attempt(
        "POST",
        "/operations",
        {("operate", "team")},
        ("operations",),
        "",
        {"kind": "keys", "action": "skip", "filter": {"group": "team"}},
    ),
    Attempt(
        "POST",
        "/operations",
        {("send", "mine")},
        ("operations",),
        "",
        {"kind": "delays", "action": "cancel", "filter": {"topic": "mine"}},
    ),
    Attempt(
        "POST", "/operations", None, ("operations",), "", {"kind": "delays", "action": "cancel", "filter": {}}
    ),
    # The count of a plan says whether a message has these contents.
    Attempt(
        "POST",
        "/operations",
        {("send", "mine"), ("browse", "mine")},
        ("operations",),
        "",
        {"kind": "delays", "action": "cancel", "filter": {"topic": "mine", "key": "k"}},
    ),
    *(
        Attempt(
            "POST",
            "/operations",
            {("operate", "team"), ("browse", "team")},
            ("operations",),
            "",
            {"kind": kind, "action": action, "filter": {"group": "team", "text": "x"}},
        )
        for kind, action in (("keys", "skip"), ("dead_letters", "purge"))
    ),
    *(
        Attempt("GET", route, {("node", "")}, tuple(route.strip("/").split("/")), "forwarded=1")
        for route in (
            "/stats",
            "/findings",
            "/snapshot",
            "/processes",
            "/clients",
            "/log",
            "/delay/histogram",
        )
    ),
]
# Lists in form 2 need the same rights as in form 1.
LISTS = {(route.method, route.path) for route in ROUTES if route.listing is not None}
ATTEMPTS += [
    Attempt(each.method, each.route, each.needs, each.path, "&".join(filter(None, (each.query, "form=2"))))
    for each in ATTEMPTS
    if (each.method, each.route) in LISTS and "forwarded" not in each.query
]
# Their objects are looked up, so that a caller without the right gets the answer for one that does not exist.
BY_ID = {
    ("POST", "/delay/messages/{id}"), ("GET", "/delay/messages/{id}"), ("GET", "/transactions/{id}"),
    ("POST", "/transactions/{id}"), ("GET", "/operations/{id}"), ("POST", "/operations/{id}/start"),
    ("POST", "/operations/{id}/stop"), ("GET", "/events"), ("GET", "/changes/{id}"),
    ("POST", "/changes/{id}/undo"),
}  # fmt: skip
BODIES_BY_ID = {
    ("POST", "/delay/messages/{id}"): {"action": "cancel"},
    ("POST", "/transactions/{id}"): {"action": "commit"},
    ("POST", "/operations/{id}/start"): {"token": "x"},
}
PUBLIC = {"/health", "/ready", "/openapi.json", "/auth"}  # answered without an identity


@pytest.fixture(scope="module", params=LAYOUTS)
def setting(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[SecuredServers]:
    with secured(tmp_path_factory.mktemp("rights"), request.param, PEOPLE) as servers:
        yield servers


def test_the_matrix_has_every_route() -> None:
    assert {(each.method, each.route) for each in ATTEMPTS} | BY_ID == {
        (route.method, route.path) for route in ROUTES
    }


def test_no_route_does_what_the_matrix_forbids(setting: SecuredServers) -> None:
    check_matrix(setting)


@pytest.mark.kafka
def test_no_route_does_on_kafka_what_the_matrix_forbids(tmp_path: Path) -> None:
    with secured(tmp_path, "one process", PEOPLE, "kafka") as servers:
        check_matrix(servers)


def check_matrix(setting: SecuredServers) -> None:
    """Every route by every identity: what a right is missing for is rejected, and in the audit log."""
    rejected = set()
    for at, who in enumerate(PEOPLE):
        client = setting.admin(who.name, at, f"127.0.1.{at + 1}")
        for attempt in ATTEMPTS:
            makes_it = {("create", "fresh"), ("create", "band")} & (attempt.needs or set())
            allowed = attempt.needs is not None and who.has_all(attempt.needs)
            if makes_it and allowed and who.name != "everything":
                continue
            status, answer = client.request(
                attempt.method, *attempt.path, query=attempt.query, body=attempt.body
            )
            asked = (attempt.method, attempt.path, attempt.query, attempt.body)
            shown = (who.name, *asked, status, str(answer)[:200])
            assert (status == 403) is not allowed, shown
            if status == 403:
                assert f"identity {who.name!r} lacks the right `" in answer["error"], shown
                rejected.add((who.name, f"{attempt.method} {attempt.route}", answer["error"]))
    names = {who.name for who in PEOPLE}

    def recorded() -> set[tuple[str, str, str]]:
        return {entry for entry in setting.rejections() if entry[0] in names and " /" in entry[1]}

    until(lambda: rejected <= recorded(), "each is in the audit log")
    assert recorded() == rejected, "and no other"


def test_nobody_gets_anything_without_a_login_but_probes(setting: SecuredServers) -> None:
    client = setting.admin("")
    for attempt in ATTEMPTS:
        status, _ = client.request(attempt.method, *attempt.path, query=attempt.query, body=attempt.body)
        is_rejected = status == (403 if "forwarded" in attempt.query else 401)
        assert is_rejected is (attempt.route not in PUBLIC), (attempt.path, attempt.query, status)
    for method, route in BY_ID:
        path = [ABSENT if part == "{id}" else part for part in route.strip("/").split("/")]
        assert client.request(method, *path, body=BODIES_BY_ID.get((method, route)))[0] == 401, route
    status, answer = client.request("GET", "topics")
    assert (status, "the request has no identity: it needs a token" in answer["error"]) == (401, True)
    wrong = AdminClient(setting.server.ports["admin"], "ddmq_wrong")
    assert wrong.request("GET", "topics")[0] == 401
    assert wrong.request("GET", "health")[0] == 200
    assert client.request("GET", "topics", headers={"X-Ddmq-Identity": "everything"})[0] == 401
    assert setting.admin("nothing").request("GET", "topics") == (200, []), "an identity without rules"
    assert client.request("GET", "topics", headers={"Authorization": "Basic cm9vdDp4"})[0] == 401


def test_listings_have_the_rows_that_the_caller_may_see(setting: SecuredServers) -> None:
    root, blind = setting.admin(), setting.admin("no-describe-mine")
    names = [row["topic"] for row in root.request("GET", "topics")[1]]
    assert "mine" in names
    rows = blind.request("GET", "topics")[1]
    assert [row["topic"] for row in rows] == [name for name in names if name != "mine"]
    groups = setting.admin("no-describe-team").request("GET", "groups")[1]
    assert {row["group"] for row in groups} == {row["group"] for row in root.request("GET", "groups")[1]} - {
        "team"
    }
    lags = setting.admin("no-describe-team").request("GET", "lag", query="count=10")[1]
    assert "team" not in {row["group"] for row in lags}


@pytest.mark.parametrize("route", ["topics", "groups", "lag"])
def test_pages_have_the_rows_that_the_caller_may_see_and_no_others_in_their_total(
    setting: SecuredServers, route: str
) -> None:
    hidden, name = ("mine", "topic") if route == "topics" else ("team", "group")
    shown = []
    for who in ("root", f"no-describe-{hidden}"):
        answer = setting.admin(who).request("GET", route, query="form=2")[1]
        assert answer["total"] == len(answer["items"]), who
        first = setting.admin(who).request("GET", route, query="form=2&count=1")[1]
        assert first["total"] == answer["total"], who
        shown.append({row[name] for row in answer["items"]})
    assert shown[1] == shown[0] - {hidden} != shown[0]


def list_delays(setting: SecuredServers, who: str, query: str) -> list[dict[str, Any]]:
    """The delayed messages that each server lists: those of all servers."""
    pages = [
        setting.admin(who, at).request("GET", "delay", "messages", query=query)
        for at in range(len(setting.servers))
    ]
    assert all(status == 200 and "total" not in page for status, page in pages if who == "no-describe-mine")
    lists = [page["items"] for _, page in pages]
    assert all(rows == lists[0] for rows in lists)
    return lists[0]


def test_contents_are_hidden_whatever_fields_a_page_selects(setting: SecuredServers) -> None:
    add_delay(setting)
    until(lambda: list_delays(setting, "root", "topic=mine&form=2"), "a message waits")
    query = "topic=mine&form=2&fields=preview"
    assert {"secret"} == {row["preview"] for row in list_delays(setting, "root", query)}
    blind = list_delays(setting, "no-browse-mine", query)
    assert blind
    assert all(row.get("preview", "") == "" for row in blind)
    assert list_delays(setting, "no-describe-mine", "form=2") == []
    assert list_delays(setting, "no-browse-mine", "form=2&text=secret") == []


def test_changes_are_visible_by_their_object_and_undone_by_the_right_of_the_change(
    setting: SecuredServers,
) -> None:
    root = setting.admin()
    changed = root.request("POST", "groups", "team", "topics", "mine", body={"paused": True})[1]["undo"]
    assert changed in {row["id"] for row in root.request("GET", "changes")[1]["items"]}
    stranger = setting.admin("no-describe-team")
    assert changed not in {
        row["id"] for row in stranger.request("GET", "changes", query="count=200")[1]["items"]
    }
    absent = "0" * len(changed)
    answers = [stranger.request("GET", "changes", each) for each in (changed, absent)]
    answers += [stranger.request("POST", "changes", each, "undo") for each in (changed, absent)]
    assert [status for status, _ in answers] == [404] * 4
    assert len({answer["error"].replace(changed, absent) for _, answer in answers}) == 1
    reader = setting.admin("no-manage-team")
    assert reader.request("GET", "changes", changed)[0] == 200
    assert reader.request("POST", "changes", changed, "undo")[0] == 403
    assert setting.admin("no-consume-mine").request("POST", "changes", changed, "undo")[0] == 403
    status, undo = setting.admin("everything").request("POST", "changes", changed, "undo")
    assert (status, undo["who"], undo["address"]) == (200, "everything", "127.0.0.1")
    recorded = root.request("GET", "changes", changed)[1]
    assert (recorded["who"], recorded["undone_by"]) == ("root", undo["id"])


def test_clients_are_those_of_visible_groups_and_producers_need_metrics(setting: SecuredServers) -> None:
    with setting.producer():
        producers = "producer"
        until(
            lambda: (
                producers in {row["kind"] for row in setting.admin().request("GET", "clients")[1]["items"]}
            ),
            "the producer is connected",
        )
        answer = setting.admin("no-metrics-all").request("GET", "clients")[1]
    assert producers not in {row["kind"] for row in answer["items"]}
    assert answer["total"] == len(answer["items"])


def test_the_console_is_served_without_a_login_and_its_data_is_not(setting: SecuredServers) -> None:
    client = setting.admin("")
    assert client.request("GET", "console", "")[0] == 200
    status, answer = client.request("GET", "snapshot")
    assert status == 401
    assert "lacks the right `metrics`" in answer["error"]


def add_delay(setting: SecuredServers, topic: str = "mine") -> str:
    message = P.DelayMessage(topic=topic, tags="", body=b"secret", action=DelayAction.ADD, dmsgtype=5,
                             delayMs=10**7, clientId="t")  # fmt: skip
    with setting.producer() as client:
        return client.call("sendDelaySync", delayMessage=message, timeout=0).uniqDelayMsgId.decode()


def test_a_delayed_message_of_a_foreign_topic_looks_as_one_that_does_not_exist(
    setting: SecuredServers,
) -> None:
    identity, absent = add_delay(setting), "00000000-0000-4000-8000-000000000000"
    until(
        lambda: setting.admin().request("GET", "delay", "messages", identity)[1].get("topic") == "mine",
        "it waits",
    )
    blind = setting.admin("no-browse-mine")
    assert blind.request("GET", "delay", "messages", identity)[1]["state"] == "unknown"
    for row in blind.request("GET", "delay", "messages", query="topic=mine")[1]["messages"]:
        assert row["preview"] == row.get("key", "") == ""
    stranger = setting.admin("no-send-mine")
    answers = [
        stranger.request("POST", "delay", "messages", each, body={"action": "cancel"})
        for each in (identity, absent)
    ]
    assert [status for status, _ in answers] == [404, 404]
    assert answers[0][1]["error"].replace(identity, absent) == answers[1][1]["error"]
    assert setting.admin("no-describe-mine").request("GET", "delay")[1]["topics"].get("mine") is None
    assert setting.admin("no-describe-mine").request("GET", "delay", "messages")[1]["messages"] == []
    status, answer = setting.admin("everything").request(
        "POST", "delay", "messages", identity, body={"action": "cancel"}
    )
    assert (status, answer["outcome"]) == (200, "cancelled")


def test_a_message_of_a_foreign_topic_is_not_found_by_its_id(setting: SecuredServers) -> None:
    root = setting.admin()
    message = root.request("POST", "messages", body={"topic": "mine", "body": "secret"})[1]["id"]
    assert root.request("GET", "messages", message)[1][0]["body"] == "secret"
    blind = setting.admin("no-browse-mine")
    assert blind.request("GET", "messages", message) == (200, [])
    status, answer = blind.request("GET", "messages", message, "story")
    _, missing = blind.request("GET", "messages", ABSENT, "story")
    assert (status, answer["error"].replace(message, ABSENT)) == (404, missing["error"])
    assert root.request("GET", "messages", message, "story")[0] == 200


def test_an_operation_is_known_to_those_who_could_have_planned_it(setting: SecuredServers) -> None:
    root = setting.admin()
    plan = root.request("POST", "operations", body={
        "kind": "delays", "action": "cancel", "filter": {"topic": "mine"}})[1]  # fmt: skip
    stranger, other = setting.admin("nothing"), setting.admin("everything")
    reader = setting.admin("no-send-mine")
    for form in ("form=1", "form=2"):
        rows = [who.request("GET", "operations", query=form)[1] for who in (other, reader, stranger)]
        shown = [
            plan["id"] in {each["id"] for each in row.get("operations", row.get("items"))} for row in rows
        ]
        assert shown == [True, True, False], form
    assert other.request("GET", "operations", plan["id"])[0] == 200
    assert reader.request("GET", "operations", plan["id"])[0] == 200
    assert reader.request("POST", "operations", plan["id"], "start", body={"token": plan["token"]})[0] == 403
    assert reader.request("POST", "operations", plan["id"], "stop")[0] == 403
    for method, *rest in (("GET",), ("POST", "stop"), ("POST", "start")):
        body = {"token": plan["token"]} if rest == ["start"] else None
        assert stranger.request(method, "operations", plan["id"], *rest, body=body)[0] == 404, rest
    assert other.request("POST", "operations", plan["id"], "start", body={"token": plan["token"]})[0] == 200


def test_a_stream_of_events_ends_when_rights_change(setting: SecuredServers) -> None:
    assert setting.admin("no-metrics-all").request("GET", "events")[0] == 403
    path = setting.conf / "security.yaml"
    connection = http.client.HTTPConnection("127.0.0.1", setting.server.ports["admin"], timeout=30)
    connection.request("GET", "/events", headers={"Authorization": f"Bearer {setting.tokens['everything']}"})
    response = connection.getresponse()
    assert response.readline()
    path.write_text(path.read_text() + "\n")
    assert b"rights have changed" in response.read()
    connection.close()
