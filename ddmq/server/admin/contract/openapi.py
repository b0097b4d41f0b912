"""The OpenAPI 3.1 document of the admin API, made from its table of routes.

Queries, bodies and answers are described by the schemas that msgspec makes from their Structs. A request may
be answered with any of the errors that its kind can have, each as {"error": text}.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from ddmq.server.admin.contract.bodies import SettingsBody
from ddmq.server.admin.contract.forms import page_form, second_form
from ddmq.server.admin.contract.queries import FormQuery
from ddmq.server.admin.contract.route import Route
from ddmq.server.admin.contract.structs.answers import ErrorAnswer, ExportText, MetricsText
from ddmq.server.admin.contract.structs.live_answers import EventsText
from ddmq.server.http.connection import JSON, NDJSON
from ddmq.server.http.pace import paced
from ddmq.server.http.routing import NO_LISTINGS
from ddmq.server.http.streams import EVENT_STREAM

VERSION = "1"  # of the API; it changes when a released request is no longer answered as before
REFERENCE = "#/components/schemas/{name}"
ERRORS = {
    400: "an unknown name, or a value that is not allowed",
    401: "the token is not valid, or the request has no identity and needs a right",
    403: "a right is missing, Host is no name of the server, or a page of another site sent the request",
    404: "the requested object does not exist",
    405: "the path does not support the method; `Allow` lists those that it does",
    408: "the body did not arrive in time",
    409: "the state of an operation does not allow the request, or the token is wrong",
    411: "Content-Length is missing",
    412: "what is to be changed was changed meanwhile",
    413: "the body is too large",
    415: "Content-Type is not application/json",
    429: "the identity is over a quota; `Retry-After` says when to try again",
    500: "the storage failed",
    503: "the server cannot serve the request at the moment; try again later",
    504: "no response arrived in time, and the requested change may or may not have been made",
}
_OF_ALL = (400, 401, 403, 405, 411, 413, 415, 429, 503)
_MEDIA_TYPES = (
    (MetricsText, "text/plain"),
    (EventsText, EVENT_STREAM),
    (ExportText, NDJSON),
)  # of answers that are not JSON
_HEX_ID = "[0-9A-Fa-f]{32}"
_VARIABLES: dict[str, dict[str, Any]] = {
    "topic": {"description": "the name of a topic"},
    "group": {"description": "the name of a consumer group"},
    "/messages/{id}": {"description": "the id of a message", "pattern": f"^{_HEX_ID}$"},
    "/transactions/{id}": {"description": "the id of a transaction", "pattern": f"^{_HEX_ID}$"},
    "/operations/{id}": {"description": "the id of a plan or operation", "pattern": "^[0-9a-f]{20}$"},
    "/changes/{id}": {"description": "the id of a change", "pattern": "^[0-9a-f]{20}$"},
    "/auth/tokens/{id}": {"description": "the id of a token", "pattern": "^[0-9a-f]{24}$"},
    "/delay/messages/{id}": {"description": "the id or the UUID of a delayed message"},
}
_VARIABLE = re.compile(r"\{(\w+)\}")
_ETAG = {"description": "the version of the settings, for If-Match", "schema": {"type": "string"}}
_IF_MATCH = {
    "name": "If-Match", "in": "header", "required": False, "schema": {"type": "string"},
    "description": "the ETag of an earlier answer: the change is made only if nothing was changed meanwhile",
}  # fmt: skip


@cache
def encode_document(routes: Sequence[Route]) -> bytes:
    """Return the document as JSON. It is made once in a process."""
    return msgspec.json.encode(build_document(routes))


def build_document(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the OpenAPI document of these routes."""
    schemas = _Schemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in paced(routes):
        paths.setdefault(route.path, {})[route.method.lower()] = _describe_operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "ddmq admin API",
            "version": VERSION,
            "description": "Topics, groups, offsets, dead letters, transactions, delayed messages and "
            "operations.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.components.items())),
            "responses": _describe_errors(schemas),
        },
    }


class _Schemas:
    """The schemas of the bodies and answers of all routes. `components`: the named ones."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._schemas: list[tuple[Any, dict[str, Any]]] = []
        self.components: dict[str, Any] = {}
        kinds = [ErrorAnswer, *(kind for route in routes for kind in _describe_forms(route))]
        kinds += [route.body for route in routes if isinstance(route.body, type)]
        kinds += [kind for route in routes for kind in route.errors.values() if kind is not None]
        for kind in paced(kinds):
            (schema,), components = msgspec.json.schema_components([kind], ref_template=REFERENCE)
            self._schemas.append((kind, schema))
            self.components |= components
        for route in routes:
            if isinstance(route.body, SettingsBody):
                self.components[route.body.name] = route.body.schema

    def find_schema(self, kind: Any) -> dict[str, Any]:
        """Return the schema of a type, or a reference to it."""
        if isinstance(kind, SettingsBody):
            return {"$ref": REFERENCE.format(name=kind.name)}
        return next(schema for other, schema in self._schemas if other == kind)


def _describe_operation(route: Route, schemas: _Schemas) -> dict[str, Any]:
    parameters = [*_path_parameters(route.path), *_query_parameters(route)]
    if route.version is not None and route.method != "GET":
        parameters.append(_IF_MATCH)
    operation = {
        "operationId": _operation_id(route),
        "tags": [route.path.split("/")[1]],
        "summary": _plain_text(route.text),
        "x-ddmq-right": route.right,
        "parameters": parameters,
        "responses": _describe_responses(route, schemas),
    }
    if route.body is not None:
        content = _as_content(schemas.find_schema(route.body), JSON)
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _operation_id(route: Route) -> str:
    """Return the method and the path as one name: getTopicsTopicMessages."""
    words = re.findall(r"[A-Za-z]+", route.path)
    return route.method.lower() + "".join(word.capitalize() for word in words)


def _plain_text(markdown: str) -> str:
    """Return a text without the targets of its links."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", markdown)


def _path_parameters(path: str) -> Iterator[dict[str, Any]]:
    for variable in _VARIABLE.finditer(path):
        name = variable[1]
        schema = {"type": "string", "minLength": 1} | (
            _VARIABLES.get(name) or _VARIABLES[path[: variable.end()]]
        )
        description = schema.pop("description")
        yield {"name": name, "in": "path", "required": True, "description": description, "schema": schema}


def _query_parameters(route: Route) -> Iterator[dict[str, Any]]:
    if route.query is None:
        return
    schema = msgspec.json.schema_components([route.query])[1][route.query.__name__]
    for name, described in schema["properties"].items():
        meaning = (described.pop("title", ""), f"allowed: {described.pop('description')}")
        yield {
            "name": name,
            "in": "query",
            "required": False,
            "description": "; ".join(filter(None, meaning)),
            "schema": _without_null(described),
        }


def _without_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a field that is None if it is absent, as the schema of its value."""
    if "anyOf" not in schema:
        return dict(schema)
    (value,) = (option for option in schema["anyOf"] if option != {"type": "null"})
    return dict(value)


def _describe_responses(route: Route, schemas: _Schemas) -> dict[str, Any]:
    media_type = next((name for kind, name in _MEDIA_TYPES if route.answer is kind), JSON)
    forms = [schemas.find_schema(kind) for kind in _describe_forms(route)]
    answer: dict[str, Any] = {
        "description": "the answer" if len(forms) == 1 else "the answer in form 1, or in form 2",
        "content": _as_content(forms[0] if len(forms) == 1 else {"anyOf": forms}, media_type),
    }
    if route.version is not None and route.method != "DELETE":
        answer["headers"] = {"ETag": _ETAG}
    errors: dict[str, Any] = {
        str(status): {"$ref": f"#/components/responses/{status}"} for status in _possible_errors(route)
    }
    for status, kind in route.errors.items():
        if kind is not None:
            schema = {"anyOf": [schemas.find_schema(kind), schemas.find_schema(ErrorAnswer)]}
            errors[str(status)] = {"description": ERRORS[status], "content": _as_content(schema, JSON)}
    return {"200": answer} | dict(sorted(errors.items()))


def _describe_forms(route: Route) -> list[Any]:
    """Return the types of the answer in form 1 and in form 2; one type if there is only form 1."""
    if route.query is None or not issubclass(route.query, FormQuery):
        return [route.answer]
    if route.listing is not None:
        return [route.answer, page_form(route.listing.item, route.listing.more)]
    return [route.answer, second_form(route.answer)]


def _describe_errors(schemas: _Schemas) -> dict[str, Any]:
    content = _as_content(schemas.find_schema(ErrorAnswer), JSON)
    return {
        str(status): {"description": description, "content": content}
        for status, description in ERRORS.items()
    }


def _as_content(schema: Mapping[str, Any], media_type: str) -> dict[str, Any]:
    """Return the `content` of a request or response of this media type."""
    return {media_type: {"schema": schema}}


def _possible_errors(route: Route) -> set[int]:
    """Return the statuses of the errors that a request of this route can have."""
    errors = {*_OF_ALL, *route.errors}
    if route.path not in NO_LISTINGS:
        errors |= {500, 504}
    if route.method == "POST":
        errors.add(408)
    if _VARIABLE.search(route.path) or "group" in getattr(route.query, "__struct_fields__", ()):
        errors.add(404)
    if route.version is not None and route.method != "GET":
        errors.add(412)
    return errors
