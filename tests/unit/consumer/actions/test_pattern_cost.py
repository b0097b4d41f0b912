"""Where a pattern is evaluated is decided from its text: what RE2 may take for it, on the worst of texts."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy_consumer.push.actions.cel_source import CelSource
from proxy_consumer.push.actions.config import PushConfig, ScriptConfig
from proxy_consumer.push.actions.job import CONTINUE, ActionJob, ActionOutcome
from proxy_consumer.push.actions.pattern_cost import POSITIONS_MAX, pattern_cost
from proxy_consumer.push.actions.script import CHEAP_WORK_MAX, FILTER_WORK_MAX, Script
from proxy_consumer.push.chain import build_chain, find_error_before_pull
from tests.crash.fuzz_patterns import fuzz

BODY_BYTES = 256 << 10
FEW_STATES = (
    "a", "^a", "^A+$", "abc|def", "error.*timeout", "https://example.com/orders/[0-9]+", "(?i)error.*timeout",
    "订单.*支付成功", r"\d{3}-\d{4}", r"^\w+@\w+\.com$", "(a|b)*c", "(x*)*", "^(foo|bar)[0-9]{1,10}$",
    "[^a]{3}b",
    r"^/api/v[12]/(orders|users)/\d+$", "", r"[\w.-]+@[\w.-]+", ".*",
)  # fmt: skip
COSTLY = (
    "a.{0,200}b.{0,200}c", "(a.{0,300}){3}c", "(?:a.{1,999}b)c", "[0-9]{3}.{0,900}[0-9]{4}q",
    "a.{100}b.{100}c",
    "([ab]{0,300}a){3}c", "a(.{0,90}b){9}c", "(a|b)*a(a|b){14}$", "a[ab]{30}c", "e.{0,500}t.{0,500}zz",
    "[a-z0-9]{1,64}@[a-z0-9]{1,64}[.][a-z]{2,9}x", "(a{30}){30}b", r"(?i)x\S{1,800}y\S{1,100}z",
    "(é.{0,90}){3}a",
    "a" + "[ab]" * 20 + "c", r"\pL{1,100}x", r"\PN{300}",
)  # fmt: skip
NOT_UNDERSTOOD = (
    "(?P<n>a)",
    "(?m)^a$",
    r"\x41",
    r"\Qa.b\E",
    "[[:alpha:]]",
    "a{1,1001}",
    "(a",
    "a)",
    "[a",
    "*a",
    "a{x}",
    "\\",
)


@pytest.mark.parametrize("pattern", FEW_STATES)
def test_a_pattern_of_few_states_costs_what_the_text_costs(pattern: str) -> None:
    cost = pattern_cost(pattern)
    assert cost is not None
    assert cost.steps is not None
    assert cost.search_cost(BODY_BYTES) < CHEAP_WORK_MAX


@pytest.mark.parametrize("pattern", COSTLY)
def test_a_pattern_of_many_states_costs_its_instructions_for_every_byte(pattern: str) -> None:
    cost = pattern_cost(pattern)
    assert cost is not None
    assert cost.steps is None
    assert cost.search_cost(BODY_BYTES) > FILTER_WORK_MAX


@pytest.mark.parametrize("pattern", NOT_UNDERSTOOD)
def test_a_pattern_that_is_not_understood_has_no_bound(pattern: str) -> None:
    assert pattern_cost(pattern) is None


@given(st.text(alphabet="ab.[]()|*+?{}0123456789,^$-\\dwpLsi:é", max_size=40))
def test_any_text_as_a_pattern_has_an_answer(pattern: str) -> None:
    cost = pattern_cost(pattern)
    assert cost is None or cost.search_cost(0) > 0


@given(st.integers(1, 1000), st.integers(1, 1000))
def test_counts_multiply_the_instructions(outer: int, inner: int) -> None:
    cost = pattern_cost(f"(a{{{inner}}}){{{outer}}}")
    assert cost is not None
    assert cost.instructions >= outer * inner
    assert outer * inner <= POSITIONS_MAX or cost.steps is None


def test_random_patterns_take_no_longer_on_random_text_than_estimated() -> None:
    """A short run; `python -m tests.crash.fuzz_patterns` has the long one. The bound is a hundredfold."""
    assert fuzz(seconds=3.0, seed=7, nanoseconds_max=1_000.0) == []


# --- which pattern goes where


def evaluator_of(expression: str, body: bytes) -> str:
    """Say who evaluates the filter of a push on this body."""
    evaluators = []

    def heavy(config: ScriptConfig, job: ActionJob, after_json: bool) -> ActionOutcome:
        evaluators.append("worker")
        return CONTINUE

    chain = build_chain(["Script", "File"], PushConfig(script=ScriptConfig(filter=expression)), heavy)
    chain.run(ActionJob(b"", b"", body, {}))
    return evaluators[0] if evaluators else "proxy"


@pytest.mark.parametrize("pattern", COSTLY)
def test_on_a_long_body_a_costly_pattern_is_evaluated_in_a_worker(pattern: str) -> None:
    assert evaluator_of(f"text.matches(r'{pattern}')", b"ab" * 100_000) == "worker"
    assert evaluator_of(f"true || text.matches(r'{pattern}')", b"ab" * 100_000) == "worker"


@pytest.mark.parametrize("pattern", [*FEW_STATES, "a[ab]{12}c"])
def test_a_cheap_pattern_or_a_short_body_is_evaluated_in_the_proxy(pattern: str) -> None:
    long = pattern in FEW_STATES
    assert evaluator_of(f"text.matches(r'{pattern}')", b"ab" * (100_000 if long else 1_000)) == "proxy"


@pytest.mark.parametrize("pattern", [r"\pL{300}\pN{300}", *NOT_UNDERSTOOD])
def test_a_pattern_that_is_costly_to_compile_or_not_understood_is_evaluated_in_a_worker(pattern: str) -> None:
    assert evaluator_of("text.matches('''" + pattern.replace("\\", "\\\\") + "''')", b"a") == "worker"


@pytest.mark.parametrize("chained", [3, 4, 7])
def test_texts_that_grow_from_call_to_call_are_evaluated_in_a_worker(chained: int) -> None:
    assert (
        evaluator_of("text" + ".split('').join('0123456789abcdef')" * chained + " == ''", b"a" * 100)
        == "worker"
    )
    assert (
        evaluator_of("strings.quote(" * 3 * chained + "text" + ")" * 3 * chained + " == ''", b'"' * 100)
        == "worker"
    )


@pytest.mark.parametrize("name", ["split('').size()", "lowerAscii()" + ".upperAscii()" * 20 + ".size()"])
def test_calls_that_go_through_a_long_text_count(name: str) -> None:
    assert evaluator_of(f"text.{name} > 3", b"a" * 250_000) == "worker"


def test_words_in_texts_and_comments_are_no_calls() -> None:
    assert (
        evaluator_of("text.contains('matches(') || text == 'format' // text.matches(text)", b"x" * 1000)
        == "proxy"
    )
    assert evaluator_of("text.matches( // \n text)", b"x") == "worker"
    assert (
        evaluator_of("\"matches('\" + text == '' || text.matches(text) || text == \"')\"", b"x") == "worker"
    )


@pytest.mark.parametrize(
    ("source", "code", "literals"),
    [
        ("text.matches('a')", "text.matches('0')", ["a"]),
        (r"text.matches(r'\d')", "text.matches('0')", [r"\d"]),
        (r"text.matches('\\d\'')", "text.matches('0')", [r"\d'"]),
        (r"x('\x41', ''' ' ''', b'''\101''')", "x('0', '1', '2')", [None, " ' ", None]),
        ('"""a"b""" + R"\\" // \'', "'0' + '1'  ", ['a"b', "\\"]),
    ],
)
def test_an_expression_is_read_without_its_literals(
    source: str, code: str, literals: list[str | None]
) -> None:
    cel = CelSource(source)
    assert cel.code == code
    assert cel.literals == literals


# --- in front of a pull


def filter_error(
    expression: str, actions: tuple[str, ...] = ("Script", "PullServer"), **settings: int
) -> str | None:
    script = ScriptConfig(filter=expression, **settings)  # type: ignore[arg-type]
    return find_error_before_pull(actions, PushConfig(script=script))


@pytest.mark.parametrize("pattern", COSTLY)
@pytest.mark.parametrize("sink", ["PullServer", "LowLevel"])
def test_in_front_of_a_pull_a_costly_pattern_is_refused_when_it_is_set(pattern: str, sink: str) -> None:
    error = filter_error(f"!text.matches(r'{pattern}')", ("Script", sink))
    assert error is not None
    assert "push.script.filter" in error
    assert repr(pattern)[:80] in error
    assert "push.script.body_bytes_max" in error
    assert filter_error(f"!text.matches(r'{pattern}')", ("Script", "File")) is None


@pytest.mark.parametrize("pattern", FEW_STATES)
def test_in_front_of_a_pull_a_cheap_pattern_is_accepted(pattern: str) -> None:
    assert filter_error(f"text.matches(r'{pattern}')") is None


def test_the_body_size_that_the_rejection_names_is_accepted() -> None:
    expression = "text.matches('a.{0,200}b')"
    error = filter_error(expression)
    assert error is not None
    match = re.search(r"body_bytes_max to (\d+)", error)
    assert match is not None
    assert filter_error(expression, body_bytes_max=int(match[1])) is None
    assert filter_error(expression, body_bytes_max=int(match[1]) + 1) is not None


@pytest.mark.parametrize(
    "expression", ["text.matches(key)", "matches(text, key)", "'%s'.format([text]) == key"]
)
def test_in_front_of_a_pull_what_the_message_decides_is_refused(expression: str) -> None:
    assert "in front of a pull" in str(filter_error(expression))


def test_what_stands_in_the_settings_is_still_understood_and_bounded() -> None:
    """Taken by an earlier release: a message that is too much for it is a script error."""
    push = PushConfig(script=ScriptConfig(filter="!text.matches('a.{0,200}b.{0,200}c')"))
    chain = build_chain(["Script", "PullServer"], push)
    assert chain.run(ActionJob(b"", b"", b"ab" * 100_000, {})).reason.startswith("Script: too much work")
    assert chain.run(ActionJob(b"", b"", b"ab" * 100, {})) == CONTINUE


def test_the_estimate_is_never_over_all_bounds() -> None:
    expression = "text" + ".split('').join('0123456789abcdef')" * 10 + " == ''"
    work = Script(ScriptConfig(filter=expression), after_json=False).cost_for(ActionJob(b"", b"", b"a", {}))
    assert work <= 1 << 62
