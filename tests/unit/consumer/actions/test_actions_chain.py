"""Actions one by one and in a chain: the rules of the old system as tables."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from hashlib import md5
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddmq_common.config import ConfigLocation, build
from ddmq_common.delivery import encode
from ddmq_common.errors import ConfigError
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.queue_feed import FILTERED
from proxy_consumer.groups.group import encode_subscription, stored_subscription
from proxy_consumer.push.actions.config import (
    CONTEXT_FIELDS,
    FileConfig,
    FormConfig,
    HttpConfig,
    PushConfig,
    RedisConfig,
    ScriptConfig,
)
from proxy_consumer.push.actions.job import ABSENT, ActionJob, Ending, MessagePosition, compact_json
from proxy_consumer.push.actions.steps import build_transit, parse
from proxy_consumer.push.chain import build_chain, filter_for_actions
from proxy_consumer.push.sinks.redis import Commands, NoValueError

HTTP = HttpConfig(urls=("http://127.0.0.1:1/x",))
POSITION = MessagePosition("T", "G", "R_default_a_0", 7)


def job(body: bytes, key: bytes = b"k", properties: dict[bytes, bytes] | None = None) -> ActionJob:
    return ActionJob(key, b"t", body, properties or {}, POSITION)


def run(actions: Sequence[str], body: bytes, push: PushConfig, **more: Any) -> tuple[Any, ActionJob]:
    one = job(body, **more)
    return build_chain(actions, push).run(one), one


# --- Json


@pytest.mark.parametrize(
    ("body", "ending"),
    [
        (b'{"a":1}', Ending.CONTINUE),
        (b"5", Ending.CONTINUE),
        (b"[]", Ending.CONTINUE),
        (b"", Ending.FINISH),
        (b" \n", Ending.FINISH),
        (b"null", Ending.FINISH),
        (b" null ", Ending.FINISH),
        (b"{", Ending.FAIL),
        (b"NaN", Ending.FAIL),
        (b'"\xff"', Ending.FAIL),
        (b"[" * 100_000, Ending.FAIL),
    ],
)
def test_json(body: bytes, ending: Ending) -> None:
    outcome, _ = run(["Json", "PullServer"], body, PushConfig())
    assert outcome.ending is ending
    assert bool(outcome.reason) == (ending is not Ending.CONTINUE)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON.filter(lambda value: value is not None))
def test_json_goes_through_unchanged(value: Any) -> None:
    text = msgspec.json.encode(value)
    _, one = run(["Json", "PullServer"], text, PushConfig())
    assert one.json == value
    assert one.text_for_sink().encode() == text


def test_numbers_keep_their_digits() -> None:
    _, one = run(["Json", "PullServer"], b'{"a":1.50,"b":123456789012345678901234567890}', PushConfig())
    assert one.text_for_sink() == '{"a":1.50,"b":123456789012345678901234567890}'


# --- Transit


@pytest.mark.parametrize(
    ("mapping", "transformed"),
    [
        ({"x": "a"}, '{"x":1}'),
        ({"x.y.z": "$.b.c"}, '{"x":{"y":{"z":[1,2]}}}'),
        ({"x": "nowhere", "y": "b.n"}, '{"y":null}'),
        ({"$": "b", "c": "a"}, '{"c":1,"n":null}'),
        ({"$": "$", "a.deep": "b.c[-1]"}, '{"a":{"deep":2},"b":{"c":[1,2],"n":null}}'),
        ({"names": "items.name"}, '{"names":["p","q"]}'),
        (
            {"n": "items.size()", "last": "items[-1].name", "two": "['a','b'].n"},
            '{"n":2,"last":"q","two":null}',
        ),
        ({"big": "$.items[?(@.size>1)].name"}, '{"big":"q"}'),
    ],
)
def test_transit(mapping: dict[str, str], transformed: str) -> None:
    body = b'{"a":1,"b":{"c":[1,2],"n":null},"items":[{"name":"p","size":1},{"name":"q","size":2}]}'
    if mapping.get("$") == "$":
        body = b'{"a":1,"b":{"c":[1,2],"n":null}}'
    outcome, one = run(["Json", "Transit", "PullServer"], body, PushConfig(transit=mapping))
    assert outcome.ending is Ending.CONTINUE
    assert one.text_for_sink() == transformed


@pytest.mark.parametrize("source", ["a", "b", "nowhere"])
def test_transit_fails_when_the_base_is_no_object(source: str) -> None:
    outcome, _ = run(["Json", "Transit", "PullServer"], b'{"a":1,"b":[]}', PushConfig(transit={"$": source}))
    assert outcome.ending is Ending.FAIL
    assert source in outcome.reason


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(), max_size=4))
def test_transit_of_each_value_to_its_own_name_is_the_identity(value: dict[str, int]) -> None:
    mapping = {name: name for name in "abcd"}
    _, one = run(["Json", "Transit", "PullServer"], msgspec.json.encode(value), PushConfig(transit=mapping))
    assert one.json == value


# --- parameters


def test_query_params() -> None:
    push = PushConfig(query_params={"id": "$.id", "all": "list", "name": "name"}, http=HTTP)
    outcome, one = run(["Json", "QueryParams", "AsyncHttp"], b'{"id":1.50,"list":[1, 2],"name":"a b"}', push)
    assert outcome.ending is Ending.ASYNCHRONIZED
    assert one.query == [("id", "1.50"), ("all", "[1,2]"), ("name", "a b")]


@pytest.mark.parametrize("body", [b"{}", b'{"id":null}', b"[]"])
def test_query_params_missing_fails(body: bytes) -> None:
    push = PushConfig(query_params={"id": "$.id"}, http=HTTP)
    outcome, _ = run(["Json", "QueryParams", "AsyncHttp"], body, push)
    assert outcome.ending is Ending.FAIL
    assert "id has no value" in outcome.reason


def hexed(text: str) -> str:
    return md5(text.encode()).hexdigest()


DEFAULT_CONTEXT = [
    ("carrera_topic", "T"),
    ("carrera_group", "G"),
    ("carrera_offset", "7"),
    ("carrera_qid", "R_default_a_0"),
    ("carrera_source", "RMQ"),
    ("carrera_msg_key", "k"),
    ("carrera_token", hexed("ksecret")),
    ("carrera_properties", '{"p":"v"}'),
]


def test_form_params_then_the_context_in_its_default_order() -> None:
    push = PushConfig(form=FormConfig(token_key="secret"), http=HTTP)
    _, one = run(["FormParams", "AsyncHttp"], b"plain \xff", push, properties={b"p": b"v"})
    assert one.params == [("params", "plain �"), *DEFAULT_CONTEXT]


def test_form_params_take_the_current_json() -> None:
    push = PushConfig(form=FormConfig(append_context=()), transit={"x": "a"}, http=HTTP)
    _, one = run(["Json", "FormParams", "AsyncHttp"], b'{"a": null}', push)
    assert one.params == [("params", '{"a":null}')]
    _, one = run(["Json", "Transit", "FormParams", "AsyncHttp"], b'{"a": null}', push)
    assert one.params == [("params", '{"x":null}')]


@pytest.mark.parametrize(
    ("order", "names"),
    [
        (("QID", "TOPIC"), ["qid", "topic"]),
        (("TOKEN",), ["msg_key", "token"]),
        (("TOKEN", "MSG_KEY"), ["token", "msg_key"]),
        (("MSG_KEY", "TOKEN"), ["msg_key", "token"]),
        ((), []),
    ],
)
def test_context_in_the_configured_order(order: tuple[str, ...], names: list[str]) -> None:
    push = PushConfig(form=FormConfig(append_context=order), http=HTTP)
    _, one = run(["FormParams", "AsyncHttp"], b"x", push)
    assert [name for name, _ in one.params[1:]] == [f"carrera_{name}" for name in names]


def test_an_absent_key_is_a_bare_name_and_null_in_the_token() -> None:
    push = PushConfig(
        form=FormConfig(append_context=("MSG_KEY", "TOKEN", "PROPERTIES"), token_key="s"), http=HTTP
    )
    _, one = run(["FormParams", "AsyncHttp"], b"x", push, key=b"")
    expected = [("carrera_msg_key", None), ("carrera_token", hexed("nulls")), ("carrera_properties", "null")]
    assert one.params[1:] == expected


def test_form_params2() -> None:
    push = PushConfig(form=FormConfig(append_context=("TOPIC",)), http=HTTP)
    body = b'{"s":"a b","n":1.50,"b":true,"z":null,"l":[1, 2],"o":{"x": 1}}'
    fields = [("s", "a b"), ("n", "1.50"), ("b", "true"), ("z", "null"), ("l", "[1,2]"), ("o", '{"x":1}')]
    for actions in (["Json", "FormParams2", "AsyncHttp"], ["FormParams2", "AsyncHttp"]):
        _, one = run(actions, body, push)
        assert one.params == [*fields, ("carrera_topic", "T")]


@pytest.mark.parametrize("body", [b"not json", b"[1]", b""])
def test_form_params2_of_no_object_is_the_body_alone(body: bytes) -> None:
    outcome, one = run(["FormParams2", "AsyncHttp"], body, PushConfig(http=HTTP))
    assert outcome.ending is Ending.ASYNCHRONIZED
    assert one.params == [("params", body.decode())]
    assert one.json is ABSENT


# --- what may stand in a chain


@pytest.mark.parametrize(
    ("actions", "push", "message"),
    [
        (["Jsn", "PullServer"], PushConfig(), "did you mean 'Json'?"),
        (["Hdfs"], PushConfig(), "use File"),
        (["Hbase"], PushConfig(), "use AsyncHttp"),
        (["Json"], PushConfig(), "the last must be one of PullServer"),
        (["PullServer", "Json", "PullServer"], PushConfig(), "is listed twice"),
        (["PullServer", "AsyncHttp"], PushConfig(http=HTTP), "PullServer is a sink"),
        (["Transit", "Json", "PullServer"], PushConfig(transit={"a": "b"}), "put Json before"),
        (["QueryParams", "AsyncHttp"], PushConfig(query_params={"a": "b"}), "put Json before"),
        (["FormParams", "PullServer"], PushConfig(), "the sink is PullServer"),
        (["FormParams", "FormParams2", "AsyncHttp"], PushConfig(http=HTTP), "two names"),
        (["Json", "Transit", "PullServer"], PushConfig(), "push.transit is empty"),
        (["Json", "Transit", "PullServer"], PushConfig(transit={"a[0]": "b"}), "target 'a[0]'"),
        (["Json", "Transit", "PullServer"], PushConfig(transit={"a": "$..[?("}), "is not a JSONPath"),
        (["AsyncHttp"], PushConfig(), "push.http.urls is empty"),
        (["AsyncHttp"], PushConfig(http=HttpConfig(urls=("ftp://x/",))), "ftp://x/"),
        (["AsyncHttp"], PushConfig(http=HttpConfig(urls=("http://u:p@x/",))), "carries a user name"),
        (["AsyncHttp"], PushConfig(http=HttpConfig(urls=("http://x/a b",))), "percent-encoded"),
        (["Redis"], PushConfig(), "push.redis.hosts is empty"),
        (["Redis"], PushConfig(redis=RedisConfig(hosts=("x",))), "'x' is not HOST:PORT"),
        (["File"], PushConfig(file=FileConfig(name="../x")), "never a path"),
        (["Script", "PullServer"], PushConfig(), "neither filter nor transform"),
    ],
)
def test_chains_that_are_refused(actions: list[str], push: PushConfig, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        SubscriptionDefaults(actions=tuple(actions), push=push)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "actions",
    [
        ("Async", "PullServer"),
        ("Json", "Async", "PullServer"),
        ("Async", "Json", "FormParams", "AsyncHttp"),
        ("NonBlockAsync", "LowLevel"),
        (),
    ],
)
def test_common_chains_are_accepted(actions: tuple[str, ...]) -> None:
    config = SubscriptionDefaults(actions=actions, push=PushConfig(http=HTTP))
    assert config.pushed == ("AsyncHttp" in actions)


def test_what_is_pushed_is_not_broadcast() -> None:
    with pytest.raises(ValueError, match="divided among the proxies"):
        SubscriptionDefaults(actions=("AsyncHttp",), push=PushConfig(http=HTTP), model="broadcasting")


# --- settings


def test_settings_survive_the_log() -> None:
    config = SubscriptionDefaults(
        actions=("Json", "Script", "Transit", "AsyncHttp"),
        push=PushConfig(
            transit={"a.b": "$.c"},
            form=FormConfig(append_context=("TOKEN",), token_key="x"),
            script=ScriptConfig(filter="body.a > 1"),
            http=HTTP,
            redis=RedisConfig(hosts=("h:1",), commands=(("DEL", "{key}"),)),
        ),
    )
    defaults = SubscriptionDefaults()
    for settings in (
        {"actions": config.actions, "push": config.push},
        dataclasses.asdict(config),
    ):
        value, key = encode_subscription(settings, 1, "log"), "subscription/G/T"
        assert stored_subscription(key, value).settings_over(defaults, key) == config


def test_an_error_in_a_file_names_the_key() -> None:
    tree = {"actions": ["Json", "PullServer"], "push": {"http": {"metod": "GET"}}}
    with pytest.raises(ConfigError, match=r"x: push.http.metod: unknown key; did you mean 'method'"):
        build(SubscriptionDefaults, tree, ConfigLocation("x", ""))
    assert CONTEXT_FIELDS[0] == "TOPIC"


# --- the filter of a pull chain


def pull_filter(config: SubscriptionDefaults) -> Any:
    message_filter = filter_for_actions(config.actions, config.push)
    assert message_filter is not None
    return message_filter


def test_a_filter_of_actions_before_a_pull() -> None:
    config = SubscriptionDefaults(
        actions=("Json", "Script", "PullServer"), push=PushConfig(script=ScriptConfig(filter="body.a > 1"))
    )
    judge = pull_filter(config).find_rejection
    assert judge(encode(b"k", b'{"a":2}', b"", None)) is None
    assert judge(encode(b"k", b'{"a":1}', b"", None)) is FILTERED
    assert judge(encode(b"k", b"", b"", None)) is FILTERED
    assert "not JSON" in judge(encode(b"k", b"{", b"", None)).error
    assert "Script" in judge(encode(b"k", b'{"b":1}', b"", None)).error
    assert "do not parse" in judge(b"\xff").error


@pytest.mark.parametrize("actions", [(), ("PullServer",), ("Async", "PullServer"), ("Json", "AsyncHttp")])
def test_no_filter_where_no_action_rejects_a_message(actions: tuple[str, ...]) -> None:
    assert filter_for_actions(actions, PushConfig(http=HTTP)) is None


def test_bodies_too_wide_for_a_path_fail() -> None:
    push = PushConfig(transit={"x": "$..a"})
    wide = b"[" + b"1," * 20_000 + b"1]"
    outcome, _ = run(["Json", "Transit", "PullServer"], wide, push)
    assert outcome.ending is Ending.FAIL
    deep = b'{"a":' * 900 + b"1" + b"}" * 900
    outcome, one = run(["Json", "Transit", "PullServer"], deep, push)
    assert outcome.ending is Ending.FAIL or one.text_for_sink()
    outcome, one = run(["Json", "Transit", "PullServer"], wide, PushConfig(transit={"x": "[7]"}))
    assert one.text_for_sink() == '{"x":1}'


def test_compact_is_json() -> None:
    assert compact_json({"a": None}) == '{"a":null}'


@pytest.mark.parametrize("number", ["1e99999999999999999999", "0.1e-99999999999999999999"])
def test_an_exponent_beyond_all_bounds_fails_the_message_and_nothing_else(number: str) -> None:
    body = f'{{"a":{number}}}'.encode()
    judged = pull_filter(SubscriptionDefaults(actions=("Json", "PullServer"))).find_rejection(
        encode(b"k", body, b"", None)
    )
    assert "exponent" in judged.error
    outcome, _ = run(["Json", "FormParams", "AsyncHttp"], body, PushConfig(http=HTTP))
    assert outcome.ending is Ending.FAIL


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("$.l[?(@.c>1)].n", "[2,4.50]"),
        ("$.l[c<0.1].n", "1"),
        ("$.l[c=0.5].n", "3"),
        ("$.l[?(@.c==2)].n", "4.50"),
    ],
)
def test_filters_compare_decimals_and_hits_keep_their_digits(path: str, text: str) -> None:
    body = b'{"l":[{"c":0.05,"n":1},{"c":1.5,"n":2},{"c":0.50,"n":3},{"c":2.0,"n":4.50},{"c":"9.5","n":5}]}'
    _, one = run(["Json", "Transit", "PullServer"], body, PushConfig(transit={"x": path}))
    assert one.text_for_sink() == f'{{"x":{text}}}'


def test_an_error_in_an_action_fails_its_message_and_is_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActionJob, "properties_text", lambda _: 1 // 0)
    script = PushConfig(script=ScriptConfig(filter="properties.a == 'x'"))
    config = SubscriptionDefaults(actions=("Script", "PullServer"), push=script)
    assert "ZeroDivisionError" in pull_filter(config).find_rejection(encode(b"k", b"x", b"", None)).error


WIDE = b'{"items":[' + b",".join([b"[]"] * 400_000) + b"]}"


def test_values_are_not_copied() -> None:
    """Not even megabytes of them: what a path finds stands in the new JSON as it is."""
    mapping = {f"t{number}": "$.items" for number in range(3)}
    one = job(WIDE)
    parsed = parse(one)
    items = one.json["items"]
    assert parsed.ending is Ending.CONTINUE
    assert build_transit(mapping)(one).ending is Ending.CONTINUE
    assert all(one.json[target] is items for target in mapping)


def test_targets_inside_a_source_value_do_not_change_it() -> None:
    mapping = {"$": "$.base", "a": "$.x", "a.b.c": "$.n", "base.n": "$.n", "again": "$.x"}
    outcome, one = run(
        ["Json", "Transit", "PullServer"],
        b'{"base":{"base":{"k":1}},"x":{"b":{"d":1}},"n":5}',
        PushConfig(transit=mapping),
    )
    assert outcome.ending is Ending.CONTINUE
    assert json.loads(one.text_for_sink()) == {
        "base": {"k": 1, "n": 5},
        "a": {"b": {"d": 1, "c": 5}},
        "again": {"b": {"d": 1}},
    }


@pytest.mark.parametrize("action", ["Transit", "QueryParams"])
def test_paths_together_find_no_more_than_fits(action: str) -> None:
    """150 times a body of a megabyte is not made."""
    mapping = {f"t{number}": "$" for number in range(150)}
    push = PushConfig(transit=mapping, query_params=mapping, http=HTTP)
    outcome, _ = run(["Json", action, "AsyncHttp"], b'{"a":"' + b"x" * 1_400_000 + b'"}', push)
    assert outcome.ending is Ending.FAIL
    assert "all paths together find more than" in outcome.reason


def test_all_paths_together_search_a_bounded_number_of_values() -> None:
    body = b"[" + b'{"a":1},' * 5_000 + b"{}]"
    mapping = {f"t{number}": "$[*].a" for number in range(4)}
    outcome, _ = run(["Json", "Transit", "PullServer"], body, PushConfig(transit=mapping))
    assert outcome.reason == "too much work: all paths together look through more than 32768 values"


def test_redis_commands_together_are_bounded() -> None:
    config = RedisConfig(hosts=("h:1",), commands=(("MSET", *(["k", "{body}"] * 40)),))
    with pytest.raises(NoValueError, match="all paths together find more than"):
        Commands(config, after_json=False).fill_commands(job(b"x" * 1_000_000))
