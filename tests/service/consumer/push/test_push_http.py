"""HTTP push from the log to a real HTTP server: requests, answers, errors, retries, dead letters."""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Any

import pytest

from ddmq_common.config import resolved
from proxy_consumer.push.actions.config import FormConfig, HttpConfig
from tests.service.consumer.push.http_receiver import OK, Receiver
from tests.service.consumer.push.push_rig import PushRig
from tests.support.waits import until

BUSY = (500, b"")


def test_without_any_client_messages_are_pushed_and_finished(rig: PushRig, receiver: Receiver) -> None:
    rig.http(receiver.url("/in?a=1"))
    rig.put(b"one", b"two", properties={b"p": b"v"})
    rig.until_committed(2)
    assert sorted(request.fields["params"] for request in receiver.requests) == ["one", "two"]
    first = min(receiver.requests, key=lambda request: request.fields["carrera_offset"])
    assert (first.method, first.path) == ("POST", "/in?a=1")
    assert first.headers["content-type"].startswith("application/x-www-form-urlencoded")
    assert first.headers["host"] == f"127.0.0.1:{receiver.port}"
    names = [field.split(b"=")[0].decode() for field in first.body.split(b"&")]
    assert names == [
        "params", "carrera_topic", "carrera_group", "carrera_offset", "carrera_qid", "carrera_source",
        "carrera_msg_key", "carrera_token", "carrera_properties", "carrera_req_cnt",
    ]  # fmt: skip
    assert first.fields["carrera_source"] == "RMQ"
    assert first.fields["carrera_properties"] == '{"p":"v"}'
    assert first.fields["carrera_qid"] == "R_default_a_0"
    assert rig.outcomes() == {"done": 2}


def test_get_sends_the_form_as_body_too(rig: PushRig, receiver: Receiver) -> None:
    actions = ("Json", "QueryParams", "FormParams", "AsyncHttp")
    rig.http(receiver.url(), method="GET", actions=actions, query_params={"id": "$.id"})
    rig.put(b'{"id": "a b"}')
    rig.until_committed(1)
    assert receiver.requests[0].method == "GET"
    assert receiver.requests[0].path == "/in?id=a%20b"
    assert receiver.requests[0].fields["params"] == '{"id":"a b"}'


def test_headers_of_the_message_go_with_its_properties_only(receiver: Receiver) -> None:
    for fields, sent in ((("PROPERTIES",), "yes"), (("TOPIC",), None)):
        rig = PushRig()
        rig.http(receiver.url(), form=FormConfig(append_context=fields))
        rig.put(b"x", properties={b"carrera_headers": b'{\n  "X-Ours": "yes",\n  "Host": "evil"\n}'})
        rig.until_committed(1)
        assert receiver.requests[-1].headers.get("x-ours") == sent
        assert receiver.requests[-1].headers["host"] == f"127.0.0.1:{receiver.port}"
        rig.close()


def test_a_signed_request_tells_who_sent_it_and_when(rig: PushRig, receiver: Receiver) -> None:
    forged = {b"carrera_headers": b'{"ddmq-signature": "forged", "DDMQ-Signature": "forged"}'}
    receiver.answers.append(BUSY)
    rig.http(receiver.url(), signing_key="s3cret")
    rig.put(b"x", properties=forged)
    rig.until_moved(lambda: rig.progress().committed == 1)
    moments = []
    for request in receiver.requests:
        at, mac = request.headers["ddmq-signature"].removeprefix("t=").split(",v1=")
        assert mac == hmac.new(b"s3cret", at.encode() + b"." + request.body, "sha256").hexdigest()
        moments.append(int(at))
    assert moments[0] < moments[1] <= rig.clock.wall_ms() // 1000
    assert "s3cret" not in str(resolved(HttpConfig(signing_key="s3cret")))

    plain = PushRig()
    plain.http(receiver.url())
    plain.put(b"x", properties=forged)
    plain.until_committed(1)
    assert "ddmq-signature" not in receiver.requests[-1].headers
    plain.close()


def test_a_signing_key_in_a_file_of_its_own(receiver: Receiver, tmp_path: Path) -> None:
    """Held back until the file is there; at a reload the file is read again."""
    rig, file = PushRig(secrets_dir=str(tmp_path)), tmp_path / "key"
    rig.http(receiver.url(), signing_key="file:key")
    rig.put(b"x")
    assert "key: cannot be read" in rig.service.find_push_error("G", "T")
    for number, secret in enumerate((b"first", b"second"), 1):
        file.write_bytes(secret)
        file.chmod(0o600)
        rig.service.reconfigure(rig.config)
        rig.put(b"x")
        rig.until_moved(lambda upto=number + 1: rig.progress().committed == upto)
        request = receiver.requests[-1]
        at, mac = request.headers["ddmq-signature"].removeprefix("t=").split(",v1=")
        assert mac == hmac.new(secret, at.encode() + b"." + request.body, "sha256").hexdigest()


@pytest.mark.parametrize("content", [b"", b"no json", b"[]", b"{}", b'{"errno":"0"}', b'{"errno":1000001}'])
def test_answers_that_mean_done(rig: PushRig, receiver: Receiver, content: bytes) -> None:
    receiver.default_answer = (200, content)
    rig.http(receiver.url())
    rig.put(b"x")
    rig.until_committed(1)
    assert rig.outcomes() == {"done": 1}
    assert rig.dead() == []


@pytest.mark.parametrize("error", [(500, b""), (302, b""), (201, b'{"errno":0}'), None])
def test_failed_pushes_are_retried_after_growing_waits(rig: PushRig, receiver: Receiver, error: Any) -> None:
    receiver.answers.extend([error] * 3)
    rig.http(receiver.url(), ack_timeout_ms=1_000)
    rig.put(b"x")
    for tries, wait in ((1, 1.0), (2, 2.0), (3, 4.0)):
        until(lambda tries=tries: len(receiver.requests) == tries and rig.outcomes().get("again") == tries)
        moved = 0.0
        while moved < wait - 0.2:
            rig.advance(0.1)
            moved += 0.1
        assert len(receiver.requests) == tries
        rig.until_moved(lambda tries=tries: len(receiver.requests) == tries + 1)
    rig.until_committed(1)
    assert receiver.counts == ["0", "1", "2", "3"]
    assert [request.path for request in receiver.requests] == ["/in"] * 4  # no redirect was followed
    assert rig.outcomes() == {"done": 1, "again": 3}
    assert rig.counted("ddmq_lease_timeouts_total") == 0  # four leases long, none ran out


def test_after_max_retry_errors_it_is_a_dead_letter(rig: PushRig, receiver: Receiver) -> None:
    receiver.default_answer = BUSY
    rig.http(receiver.url(), max_retry=2)
    rig.put(b"lost", b"next")
    rig.until_moved(lambda: rig.progress().committed == 2)
    assert sorted(receiver.counts) == ["0", "0", "1", "1", "2", "2"]
    assert sorted(body for body, _ in rig.dead()) == [b"lost", b"next"]
    assert any("status 500" in value for value in rig.dead()[0][1].values())
    assert rig.outcomes() == {"again": 4, "given up": 2}


def test_an_errno_that_is_no_number_is_a_dead_letter_at_once(rig: PushRig, receiver: Receiver) -> None:
    receiver.default_answer = (200, b'{"errno":"bad"}')
    rig.http(receiver.url())
    rig.put(b"x")
    rig.until_moved(lambda: rig.progress().committed == 1)
    assert len(receiver.requests) == 1
    assert [body for body, _ in rig.dead()] == [b"x"]


def test_an_errno_fails_the_job_with_the_retry_intervals(rig: PushRig, receiver: Receiver) -> None:
    receiver.default_answer = (200, b'{"errno":7}')
    rig.http(receiver.url(), retry_intervals_ms=(100, 150), retry_steps=0)
    rig.put(b"x")
    rig.until_moved(lambda: rig.progress().committed == 1, step_s=0.02)
    assert receiver.counts == ["0", "1", "2"]
    assert any("errno 7" in value for value in rig.dead()[0][1].values())
    assert rig.outcomes() == {"failed": 3}


def test_errno_1000002_is_retried_every_second_uncounted(rig: PushRig, receiver: Receiver) -> None:
    receiver.answers.extend([(200, b'{"errno":1000002}')] * 5)
    rig.http(receiver.url(), max_retry=0, retry_intervals_ms=(), retry_steps=0)
    rig.put(b"x")
    rig.until_moved(lambda: rig.progress().committed == 1)
    assert receiver.counts == ["0", "1", "2", "3", "4", "5"]
    assert rig.outcomes() == {"again": 5, "done": 1}
    assert rig.dead() == []


def test_errno_1000000_sends_the_next_ones_slower(rig: PushRig, receiver: Receiver) -> None:
    receiver.answers.append((200, b'{"errno":1000000}'))
    rig.http(receiver.url(), rate_max=10)
    rig.put(b"first")
    rig.until_committed(1)
    rig.put(*[b"later %d" % number for number in range(4)])
    rig.settle()
    assert len(receiver.requests) == 1  # ten permits at ten a second: the next goes in a second
    rig.advance(1.01)
    until(lambda: len(receiver.requests) == 2)
    rig.advance(1.0)
    until(lambda: len(receiver.requests) == 3)
    rig.until_moved(lambda: rig.progress().committed == 5)


def test_urls_rotate_from_a_random_start(rig: PushRig, receiver: Receiver) -> None:
    receiver.answers.extend([BUSY] * 2)
    rig.http(receiver.url("/a"), receiver.url("/b"), receiver.url("/c"))
    rig.put(b"x")
    rig.until_moved(lambda: rig.progress().committed == 1)
    order = "".join(request.path[1] for request in receiver.requests)
    assert order in ("abc", "bca", "cab")


def test_messages_may_name_their_own_target_inside_the_allow_list(rig: PushRig, receiver: Receiver) -> None:
    rig.http(receiver.url("/usual"))
    named = receiver.url("/x") + "<>" + receiver.url("/y")
    rig.put(b"x", properties={b"carrera_http_callback_url": named.encode()})
    rig.until_committed(1)
    assert receiver.requests[0].path in ("/x", "/y")
    rig.put(b"y", properties={b"carrera_http_callback_url": b"http://169.254.169.254/latest/"})
    rig.until_moved(lambda: rig.progress().committed == 2)
    assert len(receiver.requests) == 1
    assert any("not among push_targets" in value for value in rig.dead()[0][1].values())


def test_a_message_names_no_path_outside_of_one_that_is_listed(receiver: Receiver) -> None:
    rig = PushRig(push_targets=(receiver.url("/hooks/"),))
    rig.http(receiver.url("/hooks/usual"))
    for path in ("/hooks/x", "/hooks/%2e%2e/admin"):
        rig.put(b"x", properties={b"carrera_http_callback_url": receiver.url(path).encode()})
    rig.until_moved(lambda: rig.progress().committed == 2)
    assert [request.path for request in receiver.requests] == ["/hooks/x"]
    assert any("not among push_targets" in value for value in rig.dead()[0][1].values())


def test_a_receiver_that_does_not_answer_is_an_error(rig: PushRig, receiver: Receiver) -> None:
    receiver.hold.clear()
    rig.http(receiver.url(), timeout_ms=1_000)
    rig.put(b"x")
    until(lambda: rig.outcomes().get("again") == 1)
    receiver.hold.set()
    rig.until_moved(lambda: rig.progress().committed == 1)
    assert receiver.counts == ["0", "1"]


def test_a_receiver_that_does_not_listen_is_an_error(rig: PushRig) -> None:
    rig.http("http://127.0.0.1:1/", max_retry=1)
    rig.put(b"x")
    rig.until_moved(lambda: rig.progress().committed == 1)
    assert any("refused" in value for value in rig.dead()[0][1].values())


def test_an_answer_over_the_bound_is_an_error(rig: PushRig, receiver: Receiver) -> None:
    receiver.default_answer = (200, b"x" * 2_000)
    rig.http(receiver.url(), response_bytes_max=1_000, max_retry=0)
    rig.put(b"x")
    rig.until_moved(lambda: rig.progress().committed == 1)
    assert any("over 1000 bytes" in value for value in rig.dead()[0][1].values())


def test_connections_are_reused_and_bounded(rig: PushRig, receiver: Receiver) -> None:
    rig.http(receiver.url(), connections_max=2)
    rig.put(*[b"%d" % number for number in range(50)])
    rig.until_committed(50)
    assert len({request.connection for request in receiver.requests}) <= 2
    assert receiver.default_answer is OK


def test_a_callback_that_is_not_allowed_is_not_looked_at(rig: PushRig, receiver: Receiver) -> None:
    rig.http(receiver.url("/own"), allow_callback=False)
    rig.put(b"x", properties={b"carrera_http_callback_url": receiver.url("/elsewhere").encode()})
    until(lambda: len(receiver.requests) == 1)
    assert receiver.requests[0].path == "/own"
