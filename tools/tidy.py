"""Hold the house to what it has reached: rings, doubled names, private words, long files do not grow back.

    python tools/tidy.py            one line per breach; exit code 1 when there is any
    python tools/tidy.py --lower    write down what stands now, where it is less than tools/tidy.json allows

What is counted, in the product's packages (not bench, tests, tools) but for the last:

* rings: modules that import each other in a circle, imports for types alone included;
* class names that stand for different things in different modules;
* words: those that docs/glossary.md says not to use, in the product's names and texts;
* names that a module sets twice (what came from another file takes the value of what was there);
* files over FILE_LINES_MAX lines, functions over FUNCTION_LINES_MAX, folders over FOLDER_FILES_MAX files;
* names that two `except` clauses of a compiled function share (tools/except_names.py);
* how each package reads: bare names, participles, fragments and late hooks (tools/readability.py);
* class names that several files in tests/ have on their own.

tools/tidy.json lists what is allowed because it stood there before. Its numbers only ever fall.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import readability  # noqa: E402
from except_names import count_reused_names  # noqa: E402
from parsed import PACKAGES, imports, parsed, statements  # noqa: E402

# Tests that are installed for the engines of others; they are held to what tests are.
PUBLISHED_TESTS = ("backend", "testing")
ALLOWED = ROOT / "tools" / "tidy.json"
GLOSSARY = ROOT / "docs" / "glossary.md"
FILE_LINES_MAX, FUNCTION_LINES_MAX, FOLDER_FILES_MAX = 600, 60, 15
# Names that cannot be changed: of a metric, of a group on disk, of calls of RocksDB and cryptography.
FIXED_NAMES = re.compile(
    r"ddmq_log_gate|%SPEAKER|set_stats_persist_period_sec"
    r"|subject_name|Subject(AlternativeName|KeyIdentifier)|issuer_subject|(issuer|old)\.subject\b"
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
Counts = dict[str, dict[str, int]]


def sources(root: Path) -> dict[str, Path]:
    """Return the product's modules, name → file; without PUBLISHED_TESTS."""
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
        if path.relative_to(root).parts[:2] != PUBLISHED_TESTS
    }


def rings(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The strongly connected parts of more than one node (Tarjan), each sorted."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in graph[node]:
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                components.append(sorted(stack[at:]))
            del stack[at:]

    for node in graph:
        if node not in number:
            visit(node)
    return components


def import_graph(files: Mapping[str, Path]) -> dict[str, list[str]]:
    """Who imports whom, also for types alone."""
    return {
        module: sorted(
            {
                name
                for imported in imports(path)
                if (name := imported if imported in files else imported.rpartition(".")[0]) in files
                and name != module
            }
        )
        for module, path in files.items()
    }


def forbidden_words(glossary: str) -> set[str]:
    """The single words of the glossary's last column."""
    rows = [line.split("|") for line in glossary.splitlines() if line.startswith("|")]
    header = next((row for row in rows if "do not say" in row[-2]), None)
    if header is None:
        return set()
    return {
        word.strip()
        for row in rows
        if len(row) == len(header) and row is not header
        for word in re.split(r"[·,]", row[-2])
        if re.fullmatch(r"[a-z]+", word.strip())
    }


def words_of(text: str) -> Counter[str]:
    """How often each word stands there, in prose and in names; a plural counts as its singular."""
    return Counter(word.lower().removesuffix("s") for word in _WORD.findall(FIXED_NAMES.sub("", text)))


def functions(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Name and length in lines of each function."""
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def set_twice(tree: ast.Module) -> dict[str, int]:
    """The names that a module's own statements set more than once, and how often."""
    assignments = Counter(
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    )
    return {name: times for name, times in assignments.items() if times > 1}


def count(root: Path) -> Counts:
    """What stands in the tree: kind → what → how much."""
    files = sources(root)
    unwanted = forbidden_words((root / GLOSSARY.relative_to(ROOT)).read_text(encoding="utf-8"))
    classes: defaultdict[str, set[str]] = defaultdict(set)
    folders: Counter[str] = Counter()
    words: Counter[str] = Counter()
    kinds = (
        "rings",
        "class_names",
        "words",
        "set_twice",
        "files",
        "functions",
        "folders",
        "test_class_names",
    )
    counts: Counts = {kind: {} for kind in kinds}
    for module, path in files.items():
        text = path.read_text(encoding="utf-8")
        shown = str(path.relative_to(root))
        tree = parsed(path)
        for node in statements(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].add(module)
        for name, times in set_twice(tree).items():
            counts["set_twice"][f"{shown}:{name}"] = times
        for name, lines in functions(tree):
            if lines > FUNCTION_LINES_MAX:
                counts["functions"][f"{shown}:{name}"] = lines
        if text.count("\n") > FILE_LINES_MAX:
            counts["files"][shown] = text.count("\n")
        if path.name != "__init__.py":
            folders[str(path.parent.relative_to(root))] += 1
        words += words_of(text)
    counts["rings"] = {" ".join(ring): len(ring) for ring in rings(import_graph(files))}
    counts["class_names"] = {name: len(homes) for name, homes in classes.items() if len(homes) > 1}
    test_classes: Counter[str] = Counter()
    for path in sorted((root / "tests").rglob("*.py")):
        test_classes.update(node.name for node in parsed(path).body if isinstance(node, ast.ClassDef))
    counts["test_class_names"] = {name: homes for name, homes in test_classes.items() if homes > 1}
    counts |= readability.counts(files)
    counts["except_names"] = count_reused_names(root, files)
    counts["words"] = {word: words[word] for word in sorted(unwanted) if words[word]}
    counts["folders"] = {folder: files for folder, files in folders.items() if files > FOLDER_FILES_MAX}
    return counts


def breaches(counts: Counts, allowed: Counts) -> Iterator[str]:
    """What is more than allowed, a line each."""
    for kind, counted in counts.items():
        for what, number in sorted(counted.items()):
            most = allowed.get(kind, {}).get(what, 0)
            if number > most:
                yield f"tidy: {kind}: {what}: {number}, allowed {most} ({ADVICE[kind]})"


def lowered(counts: Counts, allowed: Counts) -> Counts:
    """What may stay: of what was allowed so much as is still there."""
    return {
        kind: {what: min(number, most[what]) for what, number in sorted(counts[kind].items()) if what in most}
        for kind, most in allowed.items()
    }


ADVICE = {
    "rings": "let one of them take what it needs as an argument, or return it",
    "class_names": "name each for what it is",
    "words": "docs/glossary.md has the word for it",
    "set_twice": "one of the two is gone",
    "files": f"at most {FILE_LINES_MAX} lines: move an idea out",
    "functions": f"at most {FUNCTION_LINES_MAX} lines: name its steps",
    "test_class_names": "one kit for a kind, in tests/support/ or beside those that use it",
    "bare_names": "a verb and its object; tools/readability.py PACKAGE KIND lists all places",
    "participles": "name the thing that the variable holds",
    "fragments": "write a sentence that is understood without the body",
    "except_names": "name each; compiled, the second clause may raise TypeError: tools/except_names.py",
    "late_hooks": "pass it to the constructor",
    "folders": f"at most {FOLDER_FILES_MAX} files: it holds two ideas",
}


def main(arguments: list[str]) -> int:
    counts = count(ROOT)
    allowed: Counts = json.loads(ALLOWED.read_text(encoding="utf-8"))
    if arguments == ["--lower"]:
        ALLOWED.write_text(json.dumps(lowered(counts, allowed), indent=1) + "\n", encoding="utf-8")
        return 0
    lines = list(breaches(counts, allowed))
    print("\n".join(lines) if lines else "tidy: nothing grew back")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
