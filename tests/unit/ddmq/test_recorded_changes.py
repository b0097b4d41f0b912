"""Recorded changes and their undo, against a model: an undo restores what was before, or changes nothing."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.memory import MemoryBackend
from backend.records import CommitBatch
from ddmq.server.admin.api import AdminApi
from ddmq.server.admin.changes import log as change_log
from ddmq.server.admin.changes.kinds import mask_secrets
from ddmq_common.clock import ManualClock
from ddmq_common.metrics.registry import Registry
from tests.examples import examples

FAR = 1e12


class ChangesRig:
    """The admin API of one process over a backend in memory."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.backend = MemoryBackend(self.clock)
        self.api = AdminApi(self.backend, None, Registry(), self.clock, self.backend.health)

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        self.clock.advance(0.001)
        statuses: list[str] = []
        text = b"" if body is None else json.dumps(body).encode()
        path, _, query = path.partition("?")
        environ = {
            "REQUEST_METHOD": method, "RAW_URI": path, "QUERY_STRING": query, "REMOTE_ADDR": "10.1.2.3",
            "CONTENT_LENGTH": str(len(text)), "CONTENT_TYPE": "application/json",
            "wsgi.input": io.BytesIO(text),
        }  # fmt: skip
        chunks = self.api.router(environ, lambda status, headers: statuses.append(status))
        return int(statuses[0][:3]), json.loads(b"".join(chunks))

    def post(self, path: str, body: Any = None) -> Any:
        status, answer = self.request("POST", path, body)
        assert status == 200, answer
        return answer

    def get(self, path: str) -> Any:
        status, answer = self.request("GET", path)
        assert status == 200, answer
        return answer

    def set_topic(self, **values: Any) -> Any:
        return self.post("/topics/t", {"create": False, **values})


@pytest.fixture
def server() -> Any:
    server = ChangesRig()
    server.post("/topics/t", {"queues": 2})
    yield server
    server.backend.close()


def test_closing_a_topic_to_sends_is_undone(server: ChangesRig) -> None:
    undo_id = server.set_topic(writable=False, hold_delays=True)["undo"]
    (change, created) = server.get("/changes")["items"]
    assert (change["id"], change["who"], change["object"]) == (undo_id, "10.1.2.3", "topic t")
    assert change["address"] == "10.1.2.3"
    assert change["request"] == 'POST /topics/t {"create":false,"writable":false,"hold_delays":true}'
    assert (change["before"]["writable"], change["after"]["writable"]) == (True, False)
    assert (change["undoable"], created["undoable"]) == (True, False)
    assert created["final"] == "it created the topic; `ddmq topic delete` deletes it"
    undo = server.post(f"/changes/{undo_id}/undo")
    assert (undo["undoes"], undo["undoable"]) == (undo_id, True)
    topic = server.get("/topics/t")
    assert (topic["writable"], topic["hold_delays"]) == (True, False)
    assert server.get(f"/changes/{undo_id}")["undone_by"] == undo["id"]
    status, answer = server.request("POST", f"/changes/{undo_id}/undo")
    assert (status, "was undone before" in answer["error"]) == (409, True)
    server.post(f"/changes/{undo['id']}/undo")
    assert not server.get("/topics/t")["writable"], "an undo can be undone"


def test_nothing_is_undone_if_others_changed_the_topic_meanwhile(server: ChangesRig) -> None:
    undo_id = server.set_topic(writable=False)["undo"]
    server.set_topic(body_bytes_max=1000)
    status, answer = server.request("POST", f"/changes/{undo_id}/undo")
    assert status == 409
    assert answer["error"] == (
        "topic t was changed meanwhile: body_bytes_max is 1000, not None; nothing was changed"
    )
    assert not server.get("/topics/t")["writable"]
    server.request("DELETE", "/topics/t")
    status, answer = server.request("POST", f"/changes/{undo_id}/undo")
    assert (status, "deleted" in answer["error"]) == (409, True)


@pytest.mark.parametrize(("change", "words"), [({"queues": 3}, "queues, which cannot be removed")])
def test_what_cannot_be_undone_says_why(server: ChangesRig, change: dict[str, Any], words: str) -> None:
    assert "undo" not in server.set_topic(**change)
    newest = server.get("/changes?count=1")["items"][0]
    status, answer = server.request("POST", f"/changes/{newest['id']}/undo")
    assert (status, words in answer["error"], words in newest["final"]) == (409, True, True)


def test_a_request_that_changes_nothing_is_not_recorded(server: ChangesRig) -> None:
    server.set_topic(writable=True)
    assert server.request("POST", "/topics/t", {"create": False, "writable": 7})[0] == 400
    assert len(server.get("/changes")["items"]) == 1


def test_secrets_of_a_change_are_masked_wherever_it_is_shown() -> None:
    push = {"http": {"signing_key": "s3cret", "urls": ["http://h/?key=s3cret"], "method": "POST"}}
    state = {"settings": {"push": push, "push.redis.password": "s3cret", "batch_max": 3}, "paused": False}
    masked = {"http": {"signing_key": "***", "urls": ["http://h/?key=***"], "method": "POST"}}
    assert mask_secrets(state) == {
        "settings": {"push": masked, "push.redis.password": "***", "batch_max": 3}, "paused": False
    }  # fmt: skip
    assert mask_secrets(None) is None


def test_the_oldest_changes_make_room(server: ChangesRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_log, "CHANGES_MAX", 5)
    ids = [server.set_topic(body_bytes_max=1000 + number)["undo"] for number in range(8)]
    first = server.get("/changes?count=3")
    second = server.get(f"/changes?count=3&after={first['next']}")
    assert [row["id"] for row in first["items"] + second["items"]] == ids[:2:-1]
    assert second["next"] is None
    assert server.request("POST", f"/changes/{ids[0]}/undo")[0] == 404


def test_changes_are_listed_in_the_second_form(server: ChangesRig) -> None:
    ids = [server.set_topic(body_bytes_max=1000 + number)["undo"] for number in range(5)]
    first = server.get("/changes?form=2&count=3&text=body_bytes")
    second = server.get(f"/changes?form=2&count=3&text=body_bytes&after={first['next']}")
    assert [row["id"] for row in first["items"] + second["items"]] == ids[::-1]
    assert (first["total"], first["exact"], "next" in second) == (5, True, False)
    oldest = server.get("/changes?form=2&sort=at_ms&count=1&fields=object,who")
    assert oldest["items"] == [{"object": "topic t", "who": "10.1.2.3"}]
    assert server.request("GET", "/changes?text=x")[0] == 400


def test_a_record_that_cannot_be_decoded_is_left_out(server: ChangesRig) -> None:
    batch = CommitBatch(settings={"change/" + "f" * 20: b"{"})
    server.backend.commit(batch, FAR).wait(5)
    assert len(server.get("/changes")["items"]) == 1
    assert server.request("GET", "/changes/" + "f" * 20)[0] == 500
    assert server.request("GET", "/changes/x")[0] == 404


VALUES = st.fixed_dictionaries(
    {},
    optional={
        "writable": st.booleans(), "readable": st.booleans(), "hold_delays": st.booleans(),
        "body_bytes_max": st.sampled_from([None, 1000, 2000]), "trace_one_in": st.sampled_from([0, 7]),
    },
)  # fmt: skip
NAMES = ("writable", "readable", "hold_delays", "body_bytes_max", "trace_one_in")


@given(st.lists(st.one_of(VALUES, st.integers(0, 20)), max_size=15))
@settings(max_examples=examples(100), deadline=None)
def test_an_undo_restores_the_state_before_or_changes_nothing(acts: list[Any]) -> None:
    server = ChangesRig()
    server.post("/topics/t", {"queues": 1})
    state = {name: server.get("/topics/t")[name] for name in NAMES}
    undone: list[tuple[str, Any, Any]] = []  # id, before, after
    for act in acts:
        if isinstance(act, dict):
            answer, before = server.set_topic(**act), state
            state = state | act
            assert ("undo" in answer) == (before != state)
            undone += [(answer["undo"], before, state)] if "undo" in answer else []
        elif undone:
            change_id, before, after = undone[act % len(undone)]
            is_open = not server.get(f"/changes/{change_id}")["undone_by"]
            status, answer = server.request("POST", f"/changes/{change_id}/undo")
            assert status == (200 if is_open and state == after else 409)
            if status == 200:
                undone.append((answer["id"], state, before))
                state = before
        assert {name: server.get("/topics/t")[name] for name in NAMES} == state
    server.backend.close()
