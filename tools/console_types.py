"""Check the types of the console's modules with tsc, against types made from the OpenAPI document.

    python tools/console_types.py             check; says why it does not if node or tsc is not there
    python tools/console_types.py --install   fetch TypeScript into .venv first, if it is missing (needs npm)

Modules are checked as they are, in a copy: requests have the queries, bodies and answers that the document
states for their paths, and `<${Loaded} state=${state}>${(answer) => …}` gets the answer of its request. Types
of the vendored libraries are in tools/console_declarations/.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from ddmq.server.admin.contract.openapi import build_document
from ddmq.server.admin.routes import ROUTES
from tools.vendor import Package, fetch_package

ROOT = Path(__file__).parent.parent
STATIC = ROOT / "ddmq/console/static"
DECLARATIONS = ROOT / "tools/console_declarations"
INSTALLED = ROOT / ".venv/typescript"
TYPESCRIPT = Package(
    "typescript", "5.9.3",
    "sha512-jl1vZzPDinLr9eUt3J/t7V6FgNEw9QjvBPdysz9KfQDD41fQrC2Y4vKQdiaUpFT4bXlb1RHhLpp8wtm6M5TgSw==",
    {},
)  # fmt: skip
OPTIONS = {
    "allowJs": True, "checkJs": True, "noEmit": True, "strict": False, "types": [],
    "target": "es2024", "lib": ["es2024", "dom", "dom.iterable"], "module": "esnext",
    "moduleResolution": "bundler",
}  # fmt: skip
SKIPPED = 0  # the exit status if there is nothing to check with
_PATH_TAG = re.compile(r"\bpath(?=`/)")
_LOADED = re.compile(r"(<\$\{Loaded\} state=\$\{([\w.]+)\}[^>]*>\$\{\()(\w+)(\) =>)")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--install", action="store_true", help="fetch TypeScript first, if it is not there")
    command = find_compiler(parser.parse_args().install)
    if isinstance(command, str):
        print(f"types of the console are not checked: {command}")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        copy_modules(Path(folder))
        result = subprocess.run(
            [*command, "-p", folder, "--pretty", "false"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    complaints = re.sub(
        r"^(?=(?:app|lib|pages)\b)", "ddmq/console/static/", result.stdout, flags=re.MULTILINE
    )
    print(complaints or "types of the console's modules: no complaint", end="" if complaints else "\n")
    return result.returncode


def find_compiler(install: bool) -> list[str] | str:
    """Return the command of tsc, or the reason why there is none."""
    node, compiler = shutil.which("node"), INSTALLED / "package/bin/tsc"
    if node is None:
        return "node is not installed"
    if install and not compiler.exists():
        if shutil.which("npm") is None:
            return "npm is not installed"
        INSTALLED.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fetch_package(TYPESCRIPT, INSTALLED)) as archive:
            archive.extractall(INSTALLED, filter="data")
    if compiler.exists():
        return [node, str(compiler)]
    return "tsc is not there (make console-types fetches it)"


def copy_modules(folder: Path) -> None:
    """Write the modules, the declarations and a project file for tsc."""
    for name in ("vendor", "lib", "pages"):
        (folder / name).mkdir()
    for source in [STATIC / "app.js", *STATIC.glob("lib/*.js"), *STATIC.glob("pages/*.js")]:
        name = source.relative_to(STATIC).as_posix()
        target = "lib/api.source.js" if name == "lib/api.js" else name
        (folder / target).write_text(mark_types(source.read_text(encoding="utf-8")), encoding="utf-8")
    for source in DECLARATIONS.glob("*.d.ts"):
        shutil.copy(source, folder / "vendor")
    (folder / "lib/api.d.ts").write_text(
        build_declarations(
            build_document(ROUTES), (DECLARATIONS / "api.d.ts.in").read_text(encoding="utf-8")
        ),
        encoding="utf-8",
    )
    project = {"compilerOptions": OPTIONS, "include": ["*.js", "lib/*", "pages/*", "vendor/*"]}
    (folder / "tsconfig.json").write_text(json.dumps(project))


def mark_types(text: str) -> str:
    """Return a module in which tsc sees the paths of requests, and what is loaded by whom."""
    text = _PATH_TAG.sub("", text)
    return _LOADED.sub(r"\1\3 = \2.data\4", text)


def build_declarations(document: Mapping[str, Any], frame: str) -> str:
    """Return the declarations of lib/api.js: `frame`, a type for each schema, and functions for each path."""
    schemas = document["components"]["schemas"]
    types = [f"export type {_to_name(name)} = {to_type(schema)};" for name, schema in schemas.items()]
    functions = [line for path in sorted(document["paths"], key=_rank) for line in _declare(document, path)]
    return "\n".join((frame, *types, *functions))


def _rank(path: str) -> tuple[int, int, str]:
    """Return the order of a path: before those whose pattern it also matches."""
    return -path.count("/"), path.count("{"), path


def _declare(document: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the declarations of the functions for this path, one for each method and form of the answer."""
    address = "`" + re.sub(r"\{\w+\}", "${string}", path) + "`"
    operations = document["paths"][path]
    for query, answer in _list_answers(operations["get"]) if "get" in operations else ():
        yield f"export function get(address: {address}, {query}): Promise<{answer}>;"
        yield f"export function getVersioned(address: {address}, {query}): Promise<Versioned<{answer}>>;"
        yield f"export function useData(address: {address}, {query}, options?: Options): Data<{answer}>;"
    if "post" in operations:
        operation = operations["post"]
        body = to_type(_content(operation["requestBody"])) if "requestBody" in operation else "{}"
        answer = to_type(_content(operation["responses"]["200"]))
        parameters = f"address: {address}, body?: {body}, options?: {{etag?: string}}"
        yield f"export function post({parameters}): Promise<{answer}>;"
    for query, answer in _list_answers(operations["delete"]) if "delete" in operations else ():
        yield f"export function del(address: {address}, {query}): Promise<{answer}>;"


def _list_answers(operation: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (parameter `query`, type of the answer) of each form of the answer."""
    names = [each["name"] for each in operation["parameters"] if each["in"] == "query"]
    query = "{" + "; ".join(f"{name}?: Value" for name in names) + "}"
    response = operation["responses"]["200"]
    schema = _content(response)
    if "form 2" not in response["description"]:
        return [(f"query?: {query}", to_type(schema))]
    first, second = map(to_type, schema["anyOf"])
    return [(f"query: {query} & {{form: 2}}", second), (f"query?: {query}", first)]


def _content(described: Mapping[str, Any]) -> Mapping[str, Any]:
    schema: Mapping[str, Any] = next(iter(described["content"].values()))["schema"]
    return schema


def _to_name(name: str) -> str:
    return re.sub(r"\W", "_", name)


def to_type(schema: Mapping[str, Any]) -> str:
    """Return a JSON schema as a type of TypeScript."""
    if "$ref" in schema:
        return _to_name(schema["$ref"].rpartition("/")[2])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return "(" + " | ".join(map(to_type, schema[key])) + ")"
    if "enum" in schema or "const" in schema:
        return "(" + " | ".join(map(json.dumps, schema.get("enum", [schema.get("const")]))) + ")"
    if isinstance(schema.get("type"), list):
        return "(" + " | ".join(to_type({**schema, "type": each}) for each in schema["type"]) + ")"
    match schema.get("type"):
        case "integer" | "number":
            return "number"
        case "string" | "boolean" | "null" as name:
            return str(name)
        case "array":
            return f"{to_type(schema.get('items') or {})}[]"
        case "object" if schema.get("properties"):
            required = schema.get("required", ())
            fields = (
                f"{json.dumps(name)}{'' if name in required else '?'}: {to_type(each)}"
                for name, each in schema["properties"].items()
            )
            return "{" + "; ".join(fields) + "}"
        case "object":
            values = schema.get("additionalProperties")
            return f"Record<string, {to_type(values) if isinstance(values, dict) else 'any'}>"
    return "any"


if __name__ == "__main__":
    sys.exit(main())
