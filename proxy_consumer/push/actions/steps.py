"""The actions that work on a message by paths: Json, Transit, QueryParams, FormParams, FormParams2.

Json parses the stored body. Transit builds a new JSON from paths of the current one: target path ← source
path. Targets are names joined by dots; missing objects on the way are created. A source without a value is
left out. The source of the target `$` is the object to which the others are added; without it, that is an
empty object. Only objects on the way to a target are copied.

QueryParams and FormParams build the parts of AsyncHttp's request. Context fields follow the parameters in the
order of `append_context`. carrera_req_cnt is not one of them: the sink appends it, because it changes with
each request.

Settings are checked when the subscription is created: each function here that builds an action raises
ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from hashlib import md5
from typing import Any

import msgspec

from proxy_consumer.push.actions.config import FormConfig
from proxy_consumer.push.actions.job import (
    ABSENT,
    CONTINUE,
    ActionJob,
    ActionOutcome,
    Work,
    compact_json,
    fail,
    finish_job,
    plain_value,
    readable_text,
)
from proxy_consumer.push.actions.paths import compile_path

_DECODER = msgspec.json.Decoder(float_hook=Decimal)  # 1.50 stays 1.50 on its way through
BASE = "$"
BODY_FIELD = "params"


def parse(job: ActionJob) -> ActionOutcome:
    """Parse the stored body (the action Json): not JSON = failed; empty or `null` = done."""
    if not job.body.strip(b" \t\r\n"):
        return finish_job("empty body")
    try:
        value = _DECODER.decode(job.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return fail(f"Json: the body is not JSON: {error}")
    except InvalidOperation:
        return fail("Json: a number in the body has an exponent beyond all bounds")
    except RecursionError:
        return fail("Json: the body is nested too deeply")
    if value is None:
        return finish_job("body is null")
    job.json = value
    return CONTINUE


def build_transit(mapping: Mapping[str, str]) -> Callable[[ActionJob], ActionOutcome]:
    """Build the action Transit. Raises ValueError that names the invalid path."""
    if not mapping:
        raise ValueError("push.transit is empty; give it target: source, or take Transit out of actions")
    base = compile_path(mapping[BASE]) if BASE in mapping else None
    moves = [
        (target_names(target), compile_path(source)) for target, source in mapping.items() if target != BASE
    ]

    def run_transit(job: ActionJob) -> ActionOutcome:
        base_value = {} if base is None else base(job)
        if not isinstance(base_value, dict):
            return fail(f"Transit: {mapping[BASE]} is the base and is not an object")
        result = _TransitResult(base_value, job.work)
        for names, source in moves:
            value = source(job)
            if value is not ABSENT:
                result.put(names, value)
        job.json = result.root
        return CONTINUE

    return run_transit


def target_names(target: str) -> tuple[str, ...]:
    """Return the names in a target path. Raises ValueError."""
    names = tuple(target.removeprefix("$.").split("."))
    if not all(names) or any(set(name) & set("[]*$/") for name in names):
        raise ValueError(f"push.transit: target {target!r} is not a path of names such as order.id, nor $")
    return names


class _TransitResult:
    """The new JSON of Transit, which shares the values of the old one; objects on the way to a target are
    copied, once."""

    def __init__(self, base: dict[str, Any], work: Work) -> None:
        self._work = work
        self._own: dict[int, dict[str, Any]] = {}
        self.root = self._copy(base)

    def put(self, names: tuple[str, ...], value: Any) -> None:
        node = self.root
        for name in names[:-1]:
            inner = node.get(name)
            own = self._own.get(id(inner))
            if own is None:
                own = node[name] = self._copy(inner if isinstance(inner, dict) else {})
            node = own
        node[names[-1]] = value

    def _copy(self, node: dict[str, Any]) -> dict[str, Any]:
        self._work.count_values(len(node))
        own = dict(node)
        self._own[id(own)] = own  # retained, so that no other object gets its id
        return own


def query_params(mapping: Mapping[str, str]) -> Callable[[ActionJob], ActionOutcome]:
    """Build the action QueryParams, name ← path; a missing value or null fails the job. Raises ValueError."""
    if not mapping:
        raise ValueError("push.query_params is empty; give it name: path, or take QueryParams out of actions")
    fields = [(name, path, compile_path(path)) for name, path in mapping.items()]

    def run_query_params(job: ActionJob) -> ActionOutcome:
        pairs = []
        for name, path, lookup in fields:
            value = lookup(job)
            if value is ABSENT or value is None:
                return fail(f"QueryParams: {name} has no value: there is nothing at {path}")
            pairs.append((name, plain_value(value)))
        job.query += pairs
        return CONTINUE

    return run_query_params


def form_params(config: FormConfig) -> Callable[[ActionJob], ActionOutcome]:
    """Build the action FormParams: one field with the whole body or JSON, then the context fields."""

    def run_form_params(job: ActionJob) -> ActionOutcome:
        job.params.append((BODY_FIELD, job.text_for_sink()))
        job.params += context_fields(job, config)
        return CONTINUE

    return run_form_params


def form_params2(config: FormConfig) -> Callable[[ActionJob], ActionOutcome]:
    """Build the action FormParams2: one field per top-level key, then the context; if not an object, the body
    alone."""

    def run_form_params2(job: ActionJob) -> ActionOutcome:
        value = job.json
        if value is ABSENT and parse(job) == CONTINUE:
            value, job.json = job.json, ABSENT
        if not isinstance(value, dict):
            job.params.append((BODY_FIELD, job.text_for_sink()))
            return CONTINUE
        job.params += [(name, plain_value(inner)) for name, inner in value.items()]
        job.params += context_fields(job, config)
        return CONTINUE

    return run_form_params2


def context_fields(job: ActionJob, config: FormConfig) -> list[tuple[str, str | None]]:
    """Return the fields of `append_context`, in its order; TOKEN adds carrera_msg_key if it is missing."""
    key = readable_text(job.key) if job.key else None
    position = job.position
    plain_fields: dict[str, tuple[str, str | None]] = {
        "TOPIC": ("carrera_topic", position.topic),
        "GROUP": ("carrera_group", position.group),
        "OFFSET": ("carrera_offset", str(position.offset)),
        "QID": ("carrera_qid", position.qid),
        "SOURCE": ("carrera_source", position.source),
        "MSG_KEY": ("carrera_msg_key", key),
    }
    names = list(dict.fromkeys(config.append_context))
    if "TOKEN" in names and "MSG_KEY" not in names:
        names.insert(names.index("TOKEN"), "MSG_KEY")
    fields: list[tuple[str, str | None]] = []
    for name in names:
        if name == "TOKEN":
            fields.append(("carrera_token", sign_token(key, config.token_key)))
        elif name == "PROPERTIES":
            fields.append(("carrera_properties", compact_json(job.properties_text() or None)))
        else:
            fields.append(plain_fields[name])
    return fields


def sign_token(key: str | None, token_key: str) -> str:
    """Return the token with which a receiver can verify a push; an absent key counts as `null`."""
    text = ("null" if key is None else key) + token_key
    return md5(text.encode(), usedforsecurity=False).hexdigest()
