"""Script: CEL expressions that filter and transform.

CEL has no loops, no state and no way to the machine. What it can still do is work: a macro such as map runs
its inside once per element, at most 10,000 times (the library's bound) over texts as long as the body. So an
expression with macros is run only while elements × body bytes stay below WORK_MAX. `replace`, and `join` with
a separator that is not a short text in the expression, are refused: their results have no bound. Regular
expressions are RE2's, linear in the text.

Variables: `body` (the JSON, once Json has run), `text` (the body as text), `key`, `tag` ("" when absent),
`properties`. An expression is checked, with its types, when the subscription is made. The library ends a text
at a NUL character, so one in a variable that the expression names is a script error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_math, ext_strings

from proxy_consumer.actions.config import ScriptConfig
from proxy_consumer.actions.job import CONTINUE, Job, Outcome, fail, finish, readable

EXPRESSION_CHARS_MAX = 8192
WORK_MAX = 128 << 20  # elements × bytes; a quarter of a second on one core
ITERATIONS_MAX = 10_000
RESULT_BYTES_MAX = 4 << 20
FILTERED = finish("filtered by script")
SCRIPT_ERROR = finish("script error")
_GROOVY = re.compile(r"\b(def|return|import|println|new)\b|;|->|\?\.|\?:|=~|==~|(?<![=!<>])=(?!=)")
_MACROS = re.compile(r"\b(?:all|exists|exists_one|map|filter)\b")
_VARIABLES: dict[str, Callable[[Job], Any]] = {
    "text": lambda job: readable(job.body),
    "key": lambda job: readable(job.key),
    "tag": lambda job: readable(job.tag),
    "properties": lambda job: job.properties_text(),
}
_UNBOUNDED = {b"string_replace_string_string": "replace"}
_JOINS = re.compile(r"\bjoin\s*\(")
_SHORT_JOINS = re.compile(r"""\bjoin\s*\(\s*(?:\)|'[^'\\]{0,16}'\s*\)|"[^"\\]{0,16}"\s*\))""")


class ScriptError(Exception):
    """The expression failed on this message; the text says how."""


class Expression:
    """One checked expression."""

    def __init__(self, field: str, source: str, *, with_body: bool) -> None:
        """Raises ValueError that names the field, what is wrong and where."""
        if len(source) > EXPRESSION_CHARS_MAX:
            raise ValueError(f"{field} has {len(source)} characters; allowed: {EXPRESSION_CHARS_MAX}")
        self._macros = len(_MACROS.findall(source))
        self._splits = "split" in source  # makes a list as long as the text
        self._names = [name for name in (*_VARIABLES, "body") if re.search(rf"\b{name}\b", source)]
        try:
            self._compiled = _environment(with_body).compile(source)
        except RuntimeError as error:
            raise ValueError(f"{field}: {_hint(source, str(error), with_body)}") from error
        serialized = self._compiled.serialize()
        for overload, name in _UNBOUNDED.items():
            if overload in serialized:
                raise ValueError(f"{field}: {name} is not available here: its result has no bound")
        if b"list_join_string" in serialized and _joins_at_length(source):
            raise ValueError(
                f"{field}: join takes a text of at most 16 characters: its result has no bound else"
            )

    def evaluate(self, job: Job) -> Any:
        """The value for this message. Raises ScriptError."""
        values, elements, size = *_values(job, self._names), len(job.body)
        if self._macros:
            elements = max(elements, size if self._splits else 1)
            turns = min(ITERATIONS_MAX, elements ** min(self._macros, 4))
            if turns * size > WORK_MAX:
                raise ScriptError(f"{elements} elements in {size} bytes are too much work for a macro")
        try:
            value = self._compiled.eval(data=values)
            if value.type().name() in ("ERROR", "UNKNOWN"):
                raise ScriptError(str(value.value()))
            return value
        except (RuntimeError, ValueError, OverflowError) as error:
            raise ScriptError(str(error)) from error


def script(config: ScriptConfig, *, after_json: bool) -> Callable[[Job], Outcome]:
    """The action. Raises ValueError for expressions that are none."""
    if not config.filter and not config.transform:
        raise ValueError("push.script has neither filter nor transform; give it one of them")
    kept = Expression("push.script.filter", config.filter, with_body=after_json) if config.filter else None
    made = (
        Expression("push.script.transform", config.transform, with_body=after_json)
        if config.transform
        else None
    )

    def step(job: Job) -> Outcome:
        try:
            return _run(job, config, kept, made)
        except ScriptError as error:
            job.script_failed = True
            return fail(f"Script: {error}") if config.on_script_error == "fail" else SCRIPT_ERROR

    return step


def _run(job: Job, config: ScriptConfig, kept: Expression | None, made: Expression | None) -> Outcome:
    size = len(job.body)
    if size > config.body_bytes_max:
        raise ScriptError(f"the body has {size} bytes; body_bytes_max is {config.body_bytes_max}")
    if kept is not None and kept.evaluate(job).value() is not True:
        return FILTERED
    if made is not None:
        job.json = _as_json(made.evaluate(job), [RESULT_BYTES_MAX])
    return CONTINUE


def _values(job: Job, names: Sequence[str]) -> tuple[dict[str, Any], int]:
    """The variables of these names, and the size of the largest list or object among them."""
    widest = [1]
    values = {name: _for_cel(job.json if name == "body" else _VARIABLES[name](job), widest) for name in names}
    return values, widest[0]


def _for_cel(value: Any, widest: list[int]) -> Any:
    """JSON as CEL takes it: doubles for decimals; notes the largest list or object."""
    if isinstance(value, str):
        if "\0" in value:
            raise ScriptError("a text with a NUL character")
        return value
    if isinstance(value, dict):
        widest[0] = max(widest[0], len(value))
        return {_for_cel(name, widest): _for_cel(inner, widest) for name, inner in value.items()}
    if isinstance(value, list):
        widest[0] = max(widest[0], len(value))
        return [_for_cel(inner, widest) for inner in value]
    return float(value) if isinstance(value, Decimal) else value


def _as_json(value: Any, budget: list[int]) -> Any:
    """A CEL value as JSON. Raises ScriptError for what JSON does not know, and for too much of it."""
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


_ENVIRONMENTS: dict[bool, Any] = {}


def _environment(with_body: bool) -> Any:
    if with_body not in _ENVIRONMENTS:
        kinds = cel.Type
        variables = dict.fromkeys(_VARIABLES, kinds.STRING)
        variables["properties"] = kinds.Map(kinds.STRING, kinds.STRING)
        if with_body:
            variables["body"] = kinds.DYN
        _ENVIRONMENTS[with_body] = cel.NewEnv(
            variables=variables, extensions=[ext_strings.ExtStrings(), ext_math.ExtMath()]
        )
    return _ENVIRONMENTS[with_body]


def _joins_at_length(source: str) -> bool:
    """Whether a separator may be as long as a message."""
    return len(_JOINS.findall(source)) > len(_SHORT_JOINS.findall(source))


def _hint(source: str, said: str, with_body: bool) -> str:
    said = " ".join(said.replace("INVALID_ARGUMENT: ERROR: <input>:", "at ").split("\n")[0].split())
    if not with_body and "'body" in said:
        return f"{said}; `body` is the parsed JSON: put Json before Script"
    if _GROOVY.search(source):
        return f"{said}; Groovy is not run: write a CEL expression, docs/push.md has the usual translations"
    return f"{said}; scripts are CEL expressions, see docs/push.md"
