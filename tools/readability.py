"""Measure how the code reads: bare names, participles as variables, docstring fragments, late hooks.

    python tools/readability.py                 one line per package: each measure as a share or a count
    python tools/readability.py PACKAGE KIND    every place of one measure in one package

tools/tidy.py compares the counts with those recorded in tools/tidy.json, which may only fall. The measures:

* bare_names: functions whose name is a single word that is not one of FIELD_VERBS; a method that a base class
  of ours names counts there alone;
* participles: variables named by a participle (`found`, `known`, `told`) instead of by the thing they hold;
* fragments: docstrings that open as a subordinate clause, with a pronoun, or have fewer than four words;
* late_hooks: attributes that a constructor fills with a placeholder and another module overwrites.

Generated files are left out. The numbers are a thermometer: a name that lowers them and says less is worse.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
from parsed import FUNCTIONS, walked

# The verbs that queue engineers use without an object; the class that has such a method names the object.
FIELD_VERBS = frozenset(
    """
    accept ack acquire add advance append apply backup begin bind build call cancel check clear
    close commit connect consume copy create decode delete deserialize drain encode end enqueue
    extend fail fetch fire flush format get handle join lease leave listen load log main make match
    nack notify open pack park parse peek poll pop publish pull purge push put read receive release
    remove render renew replay reply requeue reschedule resend reset restore retry rollback run save
    schedule seek send serialize set skip sleep spawn start stop subscribe sync trace unpack update
    validate wait warn write
    """.split()  # noqa: SIM905
)
PARTICIPLES = frozenset(
    """
    asked began begins begun came chosen come done found given gone heard held kept known left made
    meant named noted said seen shown taken told wanted
    """.split()  # noqa: SIM905
)
FRAGMENT = re.compile(
    r"(What|Of|For|By|Over|From|In|On|Beside|Behind|It|They|These|Those|That|There|Where|When|Who|Whose|How|Why|Until|"
    r"Nothing|Nobody|Somebody|Everything|Everybody|Others|The same|As|And|Or|So|Whoever|Whatever)\b"
)
GENERATED = re.compile(r"generated|do not edit", re.IGNORECASE)
DOCUMENTED = (ast.Module, ast.ClassDef, *FUNCTIONS)
KINDS = ("bare_names", "participles", "fragments", "late_hooks")


class Shortfall(NamedTuple):
    """A line of the source that counts against a measure."""

    file: Path
    line: int
    text: str


class Measures(NamedTuple):
    """The shortfalls per kind and package, and the number of things measured in each package."""

    shortfalls: dict[str, dict[str, list[Shortfall]]]
    totals: dict[str, Counter[str]]


def is_bare_name(name: str) -> bool:
    """Return whether a function's name is one word, and not a verb that the field uses alone."""
    plain = name.strip("_")
    is_special = name.startswith("__") and name.endswith("__")
    return not is_special and "_" not in plain and plain not in FIELD_VERBS


def is_fragment(docstring: str) -> bool:
    return FRAGMENT.match(docstring) is not None or len(docstring.split()) < 4


def measure(files: Mapping[str, Path]) -> Measures:
    """Measure the modules `files` (name → file), grouped by their first package."""
    shortfalls: dict[str, dict[str, list[Shortfall]]] = {kind: defaultdict(list) for kind in KINDS}
    totals: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    written = {module: file for module, file in files.items() if not _is_generated(file)}
    overriding = _overriding_methods(written.values())
    for module, file in written.items():
        package = _package(module)
        for node in walked(file):
            for kind, shortfall in _measured(file, node):
                if kind == "bare_names" and id(node) in overriding:
                    continue
                totals[kind][package] += 1
                if shortfall is not None:
                    shortfalls[kind][package].append(shortfall)
    for module, shortfall in _late_hooks(written):
        shortfalls["late_hooks"][_package(module)].append(shortfall)
    return Measures(shortfalls, totals)


def _overriding_methods(files: Iterable[Path]) -> set[int]:
    """Return the ids of the methods whose name a base class of the product has given."""
    classes: defaultdict[str, list[ast.ClassDef]] = defaultdict(list)
    for file in files:
        for node in walked(file):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(node)

    def inherited_names(node: ast.ClassDef, visited: frozenset[str]) -> set[str]:
        names: set[str] = set()
        for base in _base_names(node) - visited:
            for parent in classes.get(base, ()):
                names |= set(_methods(parent)) | inherited_names(parent, visited | {base})
        return names

    return {
        id(method)
        for nodes in classes.values()
        for node in nodes
        for inherited in [inherited_names(node, frozenset({node.name}))]
        for method in _methods(node).values()
        if method.name in inherited
    }


def _base_names(node: ast.ClassDef) -> set[str]:
    bases = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return {ast.unparse(base).rpartition(".")[2] for base in bases}


def _methods(node: ast.ClassDef) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    return {each.name: each for each in node.body if isinstance(each, FUNCTIONS)}


def _is_generated(file: Path) -> bool:
    return GENERATED.search(file.read_text(encoding="utf-8")[:400]) is not None


def _measured(file: Path, node: ast.AST) -> Iterator[tuple[str, Shortfall | None]]:
    """Yield each measure that applies to a node, with the shortfall if the node has one."""
    if isinstance(node, FUNCTIONS) and not (node.name.startswith("__") and node.name.endswith("__")):
        yield "bare_names", Shortfall(file, node.lineno, node.name) if is_bare_name(node.name) else None
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        is_participle = node.id.strip("_") in PARTICIPLES
        yield "participles", Shortfall(file, node.lineno, node.id) if is_participle else None
    if isinstance(node, DOCUMENTED) and (docstring := ast.get_docstring(node)):
        line = node.body[0].lineno
        yield (
            "fragments",
            Shortfall(file, line, docstring.splitlines()[0]) if is_fragment(docstring) else None,
        )


def _late_hooks(files: Mapping[str, Path]) -> Iterator[tuple[str, Shortfall]]:
    """Yield (declaring module, shortfall) for each hook that another module assigns."""
    homes: defaultdict[str, set[str]] = defaultdict(set)
    for module, file in files.items():
        for name in _placeholders(file):
            homes[name].add(module)
    for module, file in files.items():
        own = _own_attributes(file)
        for name, line in _outside_assignments(file):
            for home in sorted(homes[name]):
                if home != module and name not in own and _package(home) == _package(module):
                    yield home, Shortfall(file, line, f"{home}: {name}")


def _package(module: str) -> str:
    return module.partition(".")[0]


def _placeholders(file: Path) -> Iterator[str]:
    """Yield the attributes that a constructor fills with a stand-in for a function."""
    for node in walked(file):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            arguments = {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
            for inner in ast.walk(node):
                if isinstance(inner, ast.Assign | ast.AnnAssign) and _is_placeholder(inner, arguments):
                    yield from (each.attr for each in _targets(inner) if isinstance(each, ast.Attribute))


def _is_placeholder(assignment: ast.Assign | ast.AnnAssign, arguments: set[str]) -> bool:
    """Return whether a constructor stores a lambda, nothing, or a module's function in a hook."""
    value = assignment.value
    if isinstance(value, ast.Lambda):
        return True
    is_hook = isinstance(assignment, ast.AnnAssign) and "Callable" in ast.unparse(assignment.annotation)
    is_function = isinstance(value, ast.Name) and value.id not in arguments
    return is_hook and (value is None or isinstance(value, ast.Constant) or is_function)


def _targets(assignment: ast.Assign | ast.AnnAssign) -> Iterator[ast.expr]:
    """Yield what an assignment sets, the elements of tuples one by one."""
    for target in assignment.targets if isinstance(assignment, ast.Assign) else [assignment.target]:
        yield from target.elts if isinstance(target, ast.Tuple) else [target]


def _own_attributes(file: Path) -> set[str]:
    """Return the attributes that the classes of a file give themselves."""
    stores = (node for node in walked(file) if isinstance(node, ast.Attribute))
    return {node.attr for node in stores if isinstance(node.ctx, ast.Store) and _is_self(node.value)}


def _outside_assignments(file: Path) -> Iterator[tuple[str, int]]:
    """Yield the attributes of other objects than `self` that a file assigns, with their lines."""
    for node in walked(file):
        if isinstance(node, ast.Assign):
            for target in _targets(node):
                if isinstance(target, ast.Attribute) and not _is_self(target.value):
                    yield target.attr, node.lineno


def _is_self(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in {"self", "cls"}


def counts(files: Mapping[str, Path]) -> dict[str, dict[str, int]]:
    """Return the number of shortfalls per kind and package."""
    shortfalls = measure(files).shortfalls
    return {
        kind: {package: len(rows) for package, rows in sorted(shortfalls[kind].items())} for kind in KINDS
    }


def report(measures: Measures) -> Iterator[str]:
    """Yield one line per package and one for all of them."""
    packages = sorted({package for total in measures.totals.values() for package in total})
    for package in [*packages, "all"]:
        names = packages if package == "all" else [package]
        shares = []
        for kind in KINDS[:-1]:
            total = sum(measures.totals[kind][name] for name in names)
            count = sum(len(measures.shortfalls[kind].get(name, ())) for name in names)
            shares.append(f"{kind} {100 * count / max(total, 1):5.1f} %")
        hooks = sum(len(measures.shortfalls["late_hooks"].get(name, ())) for name in names)
        yield f"{package:16} {'   '.join(shares)}   late_hooks {hooks}"


def main(arguments: list[str]) -> int:
    from tidy import ROOT, sources

    measures = measure(sources(ROOT))
    if len(arguments) == 2:
        package, kind = arguments
        for shortfall in measures.shortfalls.get(kind, {}).get(package, ()):
            print(f"{shortfall.file.relative_to(ROOT)}:{shortfall.line}: {shortfall.text}")
    elif arguments:
        print(__doc__)
        return 2
    else:
        print("\n".join(report(measures)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
