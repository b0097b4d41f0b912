"""Says whether answers of the admin API are as its OpenAPI document describes them.

The document is made from the table of routes of this tree, not fetched: a server of this tree has the same.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

from jsonschema_rs import Draft202012Validator

from ddmq.server.admin.contract.openapi import build_document
from ddmq.server.admin.routes import ROUTES


class DescribedOperation(NamedTuple):
    """A method and path of the document, and the responses that it describes."""

    method: str
    path: str
    responses: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"


@cache
def described() -> dict[str, Any]:
    """The OpenAPI document of this tree."""
    return build_document(ROUTES)


def find_operation(method: str, target: str) -> DescribedOperation | None:
    """The operation that a request is about, if there is one."""
    segments = target.partition("?")[0].strip("/").split("/")
    for path, operations in described()["paths"].items():
        pattern = path.strip("/").split("/")
        pairs = zip(pattern, segments, strict=False)
        same = len(pattern) == len(segments) and all(p.startswith("{") or p == s for p, s in pairs)
        if same and method.lower() in operations:
            return DescribedOperation(method, path, operations[method.lower()]["responses"])
    return None


def check_answer(method: str, target: str, status: int, body: Any) -> str | None:
    """Assert that an answer is described; return the operation, None where there is none (404 and 405)."""
    operation = find_operation(method, target)
    if operation is None:
        assert status in (404, 405), (method, target, status)
        return None
    assert str(status) in operation.responses, f"{operation.name} answered {status}: {body}"
    form = 2 if status == 200 and "form=2" in target else 1
    errors = [
        f"{'/'.join(map(str, error.instance_path))}: {error.message}"
        for error in _validator(operation.name, status, form).iter_errors(body)
    ]
    assert errors == [], f"{operation.name} answered {status}: {errors}"
    return operation.name


@cache
def _validator(operation_name: str, status: int, form: int) -> Draft202012Validator:
    method, path = operation_name.split(" ")
    response = described()["paths"][path][method.lower()]["responses"][str(status)]
    if "$ref" in response:
        response = described()["components"]["responses"][response["$ref"].rpartition("/")[2]]
    ((_, content),) = response["content"].items()
    schema = content["schema"]
    if response["description"] == "the answer in form 1, or in form 2":
        schema = schema["anyOf"][form - 1]
    return Draft202012Validator(schema | {"components": described()["components"]})


def list_references(value: Any) -> set[str]:
    """Every `$ref` in the document."""
    if isinstance(value, list):
        return set().union(*map(list_references, value))
    if not isinstance(value, dict):
        return set()
    own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
    return own.union(*map(list_references, value.values()))


def resolves(reference: str) -> bool:
    """Whether a `$ref` has its target in the document."""
    value: Any = described()
    for name in re.split("/", reference.removeprefix("#/")):
        value = value.get(name, {})
    return bool(value)
