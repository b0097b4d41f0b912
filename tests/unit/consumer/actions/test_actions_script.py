"""Script: CEL with bounds. What goes on, what is filtered, what is an error, what is refused beforehand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy_consumer.push.actions.config import PushConfig, ScriptConfig
from proxy_consumer.push.actions.job import ActionJob, Ending
from proxy_consumer.push.chain import build_chain

BODY = b'{"a":2,"price":1.50,"s":"Text","l":[1,2,3],"items":[{"sku":"x","n":2}],"o":{"n":null}}'


def run(body: bytes = BODY, name: str = "Script", **settings: Any) -> tuple[Ending, ActionJob]:
    chain = build_chain(["Json", name, "PullServer"], PushConfig(script=ScriptConfig(**settings)))
    job = ActionJob(b"key", b"tag", body, {b"p": b"v"})
    return chain.run(job).ending, job


@pytest.mark.parametrize(
    ("expression", "ending"),
    [
        ("body.a == 2", Ending.CONTINUE),
        ("body.a == 2.0", Ending.CONTINUE),
        ("body.price > 1.4 && key == 'key' && tag == 'tag'", Ending.CONTINUE),
        ("properties.p == 'v'", Ending.CONTINUE),
        ("body.l.exists(x, x > 2)", Ending.CONTINUE),
        ("body.items.all(i, i.n < 3)", Ending.CONTINUE),
        ("has(body.o.n) && body.o.n == null", Ending.CONTINUE),
        ("body.s.lowerAscii() == 'text'", Ending.CONTINUE),
        ("body.s.split('x').join(', ') == 'Te, t'", Ending.CONTINUE),
        ("body.s.split('x').join() == 'Tet'", Ending.CONTINUE),
        ("text.contains('price') && body.s.matches('^T')", Ending.CONTINUE),
        ("body.a > 2", Ending.FINISH),
        ("has(body.nothing)", Ending.FINISH),
        ("body.a", Ending.FINISH),
        ("'true'", Ending.FINISH),
        ("null", Ending.FINISH),
        ("body.nothing == 1", Ending.FAIL),
        ("body.s > 1", Ending.FAIL),
        ("1 / (body.a - 2) == 1", Ending.FAIL),
        ("body.l[7] == 1", Ending.FAIL),
    ],
)
def test_filter(expression: str, ending: Ending) -> None:
    assert run(filter=expression)[0] is ending
    assert run(filter=expression, name="Groovy")[0] is ending


def test_a_script_error_filters_the_message_if_configured() -> None:
    ending, job = run(filter="body.nothing == 1", on_script_error="filter")
    assert ending is Ending.FINISH
    assert job.script_failed
    assert not run(filter="false")[1].script_failed


@pytest.mark.parametrize(
    ("expression", "transformed"),
    [
        ("{'id': body.a, 'name': body.s}", {"id": 2, "name": "Text"}),
        ("body", msgspec.json.decode(BODY)),
        ("body.items.map(i, i.sku + '!')", ["x!"]),
        ("body.l.filter(x, x > 1).map(x, x * 2)", [4, 6]),
        ("{'nested': {'list': [body.o, null, true]}}", {"nested": {"list": [{"n": None}, None, True]}}),
    ],
)
def test_transform(expression: str, transformed: Any) -> None:
    ending, job = run(transform=expression)
    assert ending is Ending.CONTINUE
    assert job.json == transformed


@pytest.mark.parametrize("expression", ["b'abc'", "{1: 2}", "double('inf')", "timestamp(0)", "body.nothing"])
def test_a_transform_that_gives_no_json_is_an_error(expression: str) -> None:
    assert run(transform=expression)[0] is Ending.FAIL


def test_filter_comes_before_transform() -> None:
    ending, job = run(filter="false", transform="1")
    assert ending is Ending.FINISH
    assert isinstance(job.json, dict)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("def x = message.a; return x > 1", "Groovy is not run"),
        ("body.list.any { it > 1 }", "CEL"),
        ("body?.a ?: 1", "Groovy is not run"),
        ("nothing == 1", "undeclared reference to 'nothing'"),
        ("key + 1", "no matching overload"),
        ("text.replace('a', text)", "replace is not available"),
        ("text.split('').join(text) == ''", "join takes a text of at most 16 characters"),
        ("body.l.join(',').split(',').join(body.s) == ''", "join takes a text of at most 16 characters"),
        ("'" + "x" * 9000 + "'", "allowed: 8192"),
        ("(" * 500 + "1" + ")" * 500, "docs/push.md"),
    ],
)
def test_expressions_that_are_refused(expression: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        run(filter=expression)
    assert message in str(caught.value)
    assert "push.script.filter" in str(caught.value)


def test_the_parsed_body_is_there_after_json_only() -> None:
    push = PushConfig(script=ScriptConfig(filter="body.a == 1"))
    with pytest.raises(ValueError, match="put Json before Script"):
        build_chain(["Script", "PullServer"], push)
    push = PushConfig(script=ScriptConfig(filter="text == 'x'"))
    assert (
        build_chain(["Script", "PullServer"], push).run(ActionJob(b"", b"", b"x", {})).ending
        is Ending.CONTINUE
    )


def test_a_nul_character_is_a_script_error_and_not_the_end_of_a_text() -> None:
    for body in (b'{"who":"admin\\u0000x"}', b'{"who":"admin","admin\\u0000":1}'):
        assert run(body, filter="body.who == 'admin'")[0] is Ending.FAIL
    assert run(b'{"who":"admin\\u0000x"}', filter="key == 'key'")[0] is Ending.CONTINUE


# --- bounds


def test_a_body_over_the_bound_is_a_script_error() -> None:
    ending, _ = run(filter="true", body_bytes_max=10)
    assert ending is Ending.FAIL


@pytest.mark.parametrize(
    "expression",
    [
        "body.l.all(x, body.l.all(y, body.l.all(z, x + y + z >= 0)))",
        "body.l.map(x, text + text).size() > 0",
        "text.split('').map(x, text).size() > 0",
    ],
)
def test_too_much_work_is_refused_before_it_is_begun(expression: str) -> None:
    body = msgspec.json.encode({"l": list(range(9000)), "s": "x" * 100_000})
    ending, job = run(body, filter=expression)
    assert ending is Ending.FAIL
    assert job.script_failed


def test_a_result_over_the_bound_is_an_error() -> None:
    body = msgspec.json.encode({"s": "x" * 250_000, "l": list(range(100))})
    assert run(body, transform="body.l.map(x, body.s)")[0] is Ending.FAIL


@given(st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62))
def test_comparisons_are_those_of_numbers(one: int, other: int) -> None:
    ending, _ = run(msgspec.json.encode({"one": one, "other": other}), filter="body.one < body.other")
    assert (ending is Ending.CONTINUE) == (one < other)


@given(st.text().filter(lambda text: "\0" not in text))
def test_text_goes_through_scripts_unchanged(text: str) -> None:
    _, job = run(
        msgspec.json.encode({"s": text}), transform="[body.s, body.s + body.s, string(size(body.s))]"
    )
    assert job.json == [text, text + text, str(len(text))]


# --- the page for those who come from Groovy


def translations() -> list[tuple[str, str]]:
    page = Path(__file__).resolve().parents[4] / "docs" / "push.md"
    table = page.read_text().partition("| Groovy | CEL |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(.+)`(?: \(transform\))? \| `(.+)` \|$", table, re.MULTILINE)
    assert len(rows) > 15
    return rows


@pytest.mark.parametrize(("groovy", "expression"), translations())
def test_the_translations_of_the_page_are_expressions(groovy: str, expression: str) -> None:
    body = {
        "amount": 101, "status": "paid", "user": {"name": "x"}, "region": "eu", "a": "x", "type": "a",
        "items": [{"sku": "x", "n": 2}, {"sku": "y", "n": 3}, {"sku": "z", "n": 4}], "name": "A",
        "list": [1] * 4, "n": -6, "b": None,
    }  # fmt: skip
    if expression.startswith(("{", "body.items.map")):
        assert run(msgspec.json.encode(body), transform=expression)[0] is Ending.CONTINUE
        return
    for name in ("A", "a,b", "abcd"):
        if run(msgspec.json.encode(body | {"name": name}), filter=expression)[0] is Ending.CONTINUE:
            return
    body |= {"n": 1}
    assert run(msgspec.json.encode(body), filter=expression)[0] is Ending.CONTINUE, groovy
