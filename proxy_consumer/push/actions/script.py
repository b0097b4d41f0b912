"""Script: CEL expressions that filter and transform messages.

CEL has no loops, no state and no access to the machine. It can still cause work: a macro such as map
evaluates its body once per element, texts can be concatenated, a pattern may come from the message. The cost
of an evaluation is estimated from above, without trust in the message. A cheap evaluation runs here. Any
other is passed to `heavy`, which can be stopped (push/script_workers.py); without `heavy` (a filter in front
of a pull) it runs here up to FILTER_WORK_MAX and is rejected beyond it. `replace`, and `join` with a
separator that is not a short text in the expression, are rejected: the size of their results has no bound.
The cost of a pattern follows from its text (pattern_cost.py); in front of a pull, a pattern that costs too
much for a body of `body_bytes_max`, or comes from the message, is rejected when it is set
(`Script.fault_before_pull`).

Variables: `body` (the JSON, once Json has run), `text` (the body as text), `key`, `tag` ("" if absent),
`properties`. An expression is checked, with its types, when the subscription is created. The CEL library ends
a text at a NUL character, so that one in a variable of the expression is a script error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_math, ext_strings

from proxy_consumer.push.actions.cel_source import CelSource
from proxy_consumer.push.actions.config import ScriptConfig
from proxy_consumer.push.actions.job import (
    ABSENT,
    CONTINUE,
    ActionJob,
    ActionOutcome,
    fail,
    finish_job,
    readable_text,
)
from proxy_consumer.push.actions.pattern_cost import PatternCost, pattern_cost

EXPRESSION_CHARS_MAX = 8192
CHEAP_WORK_MAX = 1 << 20  # estimated bytes scanned: some milliseconds on one core at most
FILTER_WORK_MAX = 4 << 20  # some 50 milliseconds at most
CONVERTED = {
    b",": 64,
    b":": 64,
    b"[": 128,
    b"{": 128,
}  # bytes scanned in the time in which CEL accepts one such mark
SEARCHED_TEXT_MAX = 64  # longest text that is searched at the cost of one scan
SEPARATOR_MAX = 16  # longest separator of join, in characters
SPLIT_WEIGHT = 8  # cost of splitting a text into characters, relative to a scan
QUOTE_GROWTH = 3  # factor by which quote may lengthen a text
NESTED_MAX = 4  # nested macros that are counted; deeper ones soon exceed every bound
ITERATION_BYTES = 256  # cost of one iteration of a macro
SEARCHED_AT_ONCE = 64  # bytes compared in the time in which one is scanned
ITERATIONS_MAX = 10_000
RESULT_BYTES_MAX = 4 << 20
WITHOUT_BOUND = 1 << 62
FILTERED = finish_job("filtered by script")
SCRIPT_ERROR = finish_job("script error")
_GROOVY = re.compile(r"\b(def|return|import|println|new)\b|;|->|\?\.|\?:|=~|==~|(?<![=!<>])=(?!=)")
_VARIABLES: dict[str, Callable[[ActionJob], Any]] = {
    "text": lambda job: readable_text(job.body),
    "key": lambda job: readable_text(job.key),
    "tag": lambda job: readable_text(job.tag),
    "properties": lambda job: job.properties_text(),
}
_USES = "body|text|key|tag|properties"
_MACROS = "all|exists|exists_one|map|filter"
_COPIES = (
    "lowerAscii|upperAscii|trim|substring|charAt|reverse|string|bytes|size"  # functions that scan a text
)
_SEARCHES = ("contains", "indexOf", "lastIndexOf", "split")
_UNBOUNDED = {b"string_replace_string_string": "replace"}


class ScriptError(Exception):
    """The expression failed on this message; the text says why."""


Heavy = Callable[[ScriptConfig, ActionJob, bool], ActionOutcome]  # also "after Json"; raises ScriptError


class Expression:
    """One checked CEL expression."""

    def __init__(self, field: str, source: str, *, with_body: bool) -> None:
        """Compile and check the expression. Raises ValueError that names the field, the error and its
        position."""
        if len(source) > EXPRESSION_CHARS_MAX:
            raise ValueError(f"{field} has {len(source)} characters; allowed: {EXPRESSION_CHARS_MAX}")
        cel = CelSource(source)
        self._field = field
        self._length = len(source)
        self._macros = cel.count_names(_MACROS)
        self._sums = cel.code.count("+")
        self._literals = 1 + cel.code.count(",")  # upper bound of the lists in the expression
        self._splits = cel.count_names("split")  # each builds a list as long as the text
        self._through = (
            max(1, cel.count_names(_USES)) + cel.count_names(_COPIES) + SPLIT_WEIGHT * self._splits
        )
        searched = [text for name in _SEARCHES for text in cel.first_arguments(name)]
        self._searches = any(text is None or len(text) > SEARCHED_TEXT_MAX for text in searched)
        self._patterns, self._costs = _constant_patterns(cel)
        self._formats = cel.count_names("format")
        separators = cel.first_arguments("join")
        self._grown = _joined_growth(separators) * QUOTE_GROWTH ** cel.count_names("quote")
        self._names = [name for name in (*_VARIABLES, "body") if cel.count_names(name)]
        try:
            self._compiled = _build_environment(with_body).compile(source)
        except RuntimeError as error:
            raise ValueError(f"{field}: {_build_hint(source, str(error), with_body)}") from error
        serialized = self._compiled.serialize()
        for overload, name in _UNBOUNDED.items():
            if overload in serialized:
                raise ValueError(f"{field}: {name} is not available here: its result has no bound")
        if b"list_join_string" in serialized and _has_long(separators):
            raise ValueError(
                f"{field}: join takes a text of at most {SEPARATOR_MAX} characters: "
                "its result has no bound else"
            )

    def evaluation_cost(self, job: ActionJob) -> int:
        """Return the most bytes that an evaluation may scan; WITHOUT_BOUND if that depends on the message's
        content."""
        if self._formats or None in self._costs:
            return WITHOUT_BOUND
        size = len(job.body) + len(job.key) + len(job.tag) + self._length
        if job.properties:
            size += sum(len(name) + len(value) for name, value in job.properties.items())
        grown: int = self._grown * (self._sums + 1)
        if self._searches:  # a text of the message is compared at every index of another
            grown *= 1 + size // SEARCHED_AT_ONCE
        conversion = _conversion_cost(job.body) if "body" in self._names else 0
        through = self._through * (size + ITERATION_BYTES)
        through += sum(cost.search_cost(size) for cost in self._costs if cost is not None)
        if not self._macros:
            return min(WITHOUT_BOUND, conversion + grown * through)
        elements = max(size if self._splits else _widest_value(job), self._literals)
        iterations = min(ITERATIONS_MAX, int(elements ** min(self._macros, NESTED_MAX)))
        return min(
            WITHOUT_BOUND, conversion + iterations * grown * int((self._sums + 1) ** self._macros) * through
        )

    def find_error_before_pull(self, size: int) -> str | None:
        """Return why the expression must not filter messages of `size` bytes in the proxy; None if it may."""
        if self._formats:
            return f"{self._field}: format is not available in front of a pull: its result has no bound"
        for pattern, cost in zip(self._patterns, self._costs, strict=True):
            error = _find_pattern_error(pattern, cost, size)
            if error is not None:
                return f"{self._field}: {error}"
        return None

    def evaluate_for(self, job: ActionJob) -> Any:
        """Evaluate the expression for this message. Raises ScriptError."""
        values = {
            name: _for_cel(job.json if name == "body" else _VARIABLES[name](job)) for name in self._names
        }
        try:
            value = self._compiled.eval(data=values)
            if value.type().name() in ("ERROR", "UNKNOWN"):
                raise ScriptError(str(value.value()))
            return value
        except (RuntimeError, ValueError, OverflowError) as error:
            raise ScriptError(str(error)) from error


class Script:
    """The checked expressions of one subscription; the caller decides in which process they run."""

    def __init__(self, config: ScriptConfig, *, after_json: bool) -> None:
        """Check the expressions. Raises ValueError for invalid ones."""
        if not config.filter and not config.transform:
            raise ValueError("push.script has neither filter nor transform; give it one of them")
        self._filter = self._transform = None
        if config.filter:
            self._filter = Expression("push.script.filter", config.filter, with_body=after_json)
        if config.transform:
            self._transform = Expression("push.script.transform", config.transform, with_body=after_json)

    def cost_for(self, job: ActionJob) -> int:
        """Return the most bytes that the expressions may scan for this message."""
        cost = 0 if self._filter is None else self._filter.evaluation_cost(job)
        return cost + (0 if self._transform is None else self._transform.evaluation_cost(job))

    def find_error_before_pull(self, size: int) -> str | None:
        """Return why the expressions must not filter messages of up to `size` bytes in the proxy; None if
        they may."""
        expressions = [expression for expression in (self._filter, self._transform) if expression is not None]
        return next(
            filter(None, (expression.find_error_before_pull(size) for expression in expressions)), None
        )

    def run(self, job: ActionJob) -> ActionOutcome:
        """Filter the message, then transform it. Raises ScriptError."""
        if self._filter is not None and self._filter.evaluate_for(job).value() is not True:
            return FILTERED
        if self._transform is not None:
            job.json = _as_json(self._transform.evaluate_for(job), [RESULT_BYTES_MAX])
        return CONTINUE


def build_script(
    config: ScriptConfig, *, after_json: bool, heavy: Heavy | None = None
) -> Callable[[ActionJob], ActionOutcome]:
    """Build the Script action; `heavy` runs evaluations that may take long. Raises ValueError for invalid
    expressions."""
    action = Script(config, after_json=after_json)

    def run(job: ActionJob) -> ActionOutcome:
        size = len(job.body)
        if size > config.body_bytes_max:
            raise ScriptError(f"the body has {size} bytes; body_bytes_max is {config.body_bytes_max}")
        work = action.cost_for(job)
        if work <= (CHEAP_WORK_MAX if heavy is not None else FILTER_WORK_MAX):
            return action.run(job)
        if heavy is None:
            raise ScriptError(
                "too much work for a script in front of a pull: elements, texts added and patterns "
                f"of the message come to {work} bytes; allowed: {FILTER_WORK_MAX}"
            )
        return heavy(config, job, after_json)

    def run_script(job: ActionJob) -> ActionOutcome:
        try:
            return run(job)
        except ScriptError as error:
            job.script_failed = True
            return fail(f"Script: {error}") if config.on_script_error == "fail" else SCRIPT_ERROR

    return run_script


def _conversion_cost(body: bytes) -> int:
    """Return the cost of passing the JSON to CEL, element by element."""
    return sum(weight * body.count(mark) for mark, weight in CONVERTED.items())


def _widest_value(job: ActionJob) -> int:
    """Return an upper bound for the elements of any list or object in the message."""
    commas = job.body.count(b",")
    return 1 + max(commas, len(job.properties), 0 if job.json is ABSENT else _length_of(job.json))


def _length_of(value: Any) -> int:
    return len(value) if isinstance(value, dict | list) else 1


def _for_cel(value: Any) -> Any:
    """Convert JSON for CEL: decimals become doubles. Raises ScriptError for a text with a NUL character."""
    if isinstance(value, str):
        if "\0" in value:
            raise ScriptError("a text with a NUL character")
        return value
    if isinstance(value, dict):
        return {_for_cel(name): _for_cel(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_for_cel(inner) for inner in value]
    return float(value) if isinstance(value, Decimal) else value


def _as_json(value: Any, budget: list[int]) -> Any:
    """Convert a CEL value to JSON. Raises ScriptError if JSON cannot represent it, or if it exceeds the
    budget."""
    content = value.value()
    budget[0] -= 8 + (len(content) if isinstance(content, str) else 0)
    if budget[0] < 0:
        raise ScriptError(f"the result of transform is over {RESULT_BYTES_MAX} bytes")
    if isinstance(content, dict):
        if not all(isinstance(name, str) for name in content):
            raise ScriptError("transform gave an object with a name that is not text")
        return {name: _as_json(inner, budget) for name, inner in content.items()}
    if isinstance(content, list):
        return [_as_json(inner, budget) for inner in content]
    if content is None or isinstance(content, bool | int | str):
        return content
    if isinstance(content, float) and content - content == 0:
        return content
    raise ScriptError(f"transform gave {value.type().name()} {str(content)[:40]}, which JSON does not know")


@cache
def _build_environment(with_body: bool) -> Any:
    kinds = cel.Type
    variables = dict.fromkeys(_VARIABLES, kinds.STRING)
    variables["properties"] = kinds.Map(kinds.STRING, kinds.STRING)
    if with_body:
        variables["body"] = kinds.DYN
    return cel.NewEnv(variables=variables, extensions=[ext_strings.ExtStrings(), ext_math.ExtMath()])


def _has_long(separators: list[str | None]) -> bool:
    """Whether a separator may be longer than SEPARATOR_MAX, because it is long or comes from the message."""
    return any(text is None or len(text) > SEPARATOR_MAX for text in separators)


def _joined_growth(separators: list[str | None]) -> int:
    """Return by which factor splitting and joining with all of these may lengthen a text."""
    return math.prod(1 + len((text or "").encode()) for text in separators)


def _constant_patterns(cel: CelSource) -> tuple[list[str | None], list[PatternCost | None]]:
    """Return the patterns of an expression and their costs; None for those known only with a message."""
    patterns = cel.first_arguments("matches")
    patterns += [None] * (cel.count_names("matches") - len(patterns))
    return patterns, [None if pattern is None else pattern_cost(pattern) for pattern in patterns]


def _find_pattern_error(pattern: str | None, cost: PatternCost | None, size: int) -> str | None:
    if pattern is None:
        return "in front of a pull, matches takes a pattern that is a text in the expression"
    quoted = repr(pattern if len(pattern) <= 100 else f"{pattern[:99]}…")
    if cost is None:
        return (
            f"the pattern {quoted} cannot be judged in front of a pull; write it without named groups, "
            "escapes by number, classes such as [:alpha:] and flags other than i, s, U, or use push"
        )
    work = cost.search_cost(size)
    if work <= FILTER_WORK_MAX:
        return None
    fitting = (FILTER_WORK_MAX - cost.search_cost(0)) // cost.instructions
    less = f"lower push.script.body_bytes_max to {fitting}, " if fitting > 0 else ""
    return (
        f"the pattern {quoted} may take {work} steps with a body of {size} bytes "
        f"(push.script.body_bytes_max); allowed in front of a pull: {FILTER_WORK_MAX}; repeat without counts "
        f"(* and + instead of {{n,m}}), {less}or use push, where it is evaluated beside the proxy"
    )


def _build_hint(source: str, message: str, with_body: bool) -> str:
    message = " ".join(message.replace("INVALID_ARGUMENT: ERROR: <input>:", "at ").split("\n")[0].split())
    if not with_body and "'body" in message:
        return f"{message}; `body` is the parsed JSON: put Json before Script"
    if _GROOVY.search(source):
        return (
            f"{message}; Groovy is not run: write a CEL expression, docs/push.md has the usual translations"
        )
    return f"{message}; scripts are CEL expressions, see docs/push.md"
