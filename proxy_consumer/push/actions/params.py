"""QueryParams, FormParams, FormParams2: what the request of AsyncHttp is made of.

Context fields follow the parameters in the order of `append_context`. carrera_req_cnt is not one of them:
the sink appends it, because it changes from request to request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import md5

from proxy_consumer.push.actions.config import FormConfig
from proxy_consumer.push.actions.job import (
    ABSENT,
    CONTINUE,
    ActionJob,
    ActionOutcome,
    compact,
    fail,
    plain,
    readable,
)
from proxy_consumer.push.actions.json_body import parse
from proxy_consumer.push.actions.paths import compile_path

BODY_FIELD = "params"


def query_params(mapping: Mapping[str, str]) -> Callable[[ActionJob], ActionOutcome]:
    """The action: name ← path; missing or null = failed. Raises ValueError that names the bad path."""
    if not mapping:
        raise ValueError("push.query_params is empty; give it name: path, or take QueryParams out of actions")
    wanted = [(name, path, compile_path(path)) for name, path in mapping.items()]

    def step(job: ActionJob) -> ActionOutcome:
        found = []
        for name, path, lookup in wanted:
            value = lookup(job)
            if value is ABSENT or value is None:
                return fail(f"QueryParams: {name} has no value: there is nothing at {path}")
            found.append((name, plain(value)))
        job.query += found
        return CONTINUE

    return step


def form_params(config: FormConfig) -> Callable[[ActionJob], ActionOutcome]:
    """The action FormParams: one field with the whole body or JSON, then the context."""

    def step(job: ActionJob) -> ActionOutcome:
        job.params.append((BODY_FIELD, job.text()))
        job.params += context_fields(job, config)
        return CONTINUE

    return step


def form_params2(config: FormConfig) -> Callable[[ActionJob], ActionOutcome]:
    """The action FormParams2: one field per top-level key, then the context; no object: the body alone."""

    def step(job: ActionJob) -> ActionOutcome:
        value = job.json
        if value is ABSENT and parse(job) == CONTINUE:
            value, job.json = job.json, ABSENT
        if not isinstance(value, dict):
            job.params.append((BODY_FIELD, job.text()))
            return CONTINUE
        job.params += [(name, plain(inner)) for name, inner in value.items()]
        job.params += context_fields(job, config)
        return CONTINUE

    return step


def context_fields(job: ActionJob, config: FormConfig) -> list[tuple[str, str | None]]:
    """The fields of `append_context`, in its order. TOKEN brings carrera_msg_key unless it is there."""
    key = readable(job.key) if job.key else None
    place = job.place
    plain_fields: dict[str, tuple[str, str | None]] = {
        "TOPIC": ("carrera_topic", place.topic),
        "GROUP": ("carrera_group", place.group),
        "OFFSET": ("carrera_offset", str(place.offset)),
        "QID": ("carrera_qid", place.qid),
        "SOURCE": ("carrera_source", place.source),
        "MSG_KEY": ("carrera_msg_key", key),
    }
    wanted = list(dict.fromkeys(config.append_context))
    if "TOKEN" in wanted and "MSG_KEY" not in wanted:
        wanted.insert(wanted.index("TOKEN"), "MSG_KEY")
    fields: list[tuple[str, str | None]] = []
    for name in wanted:
        if name == "TOKEN":
            fields.append(("carrera_token", token(key, config.token_key)))
        elif name == "PROPERTIES":
            fields.append(("carrera_properties", compact(job.properties_text() or None)))
        else:
            fields.append(plain_fields[name])
    return fields


def token(key: str | None, token_key: str) -> str:
    """What the receiver can check a push with; an absent key counts as `null`."""
    text = ("null" if key is None else key) + token_key
    return md5(text.encode(), usedforsecurity=False).hexdigest()
