"""Write "Promises by engine" of docs/kafka.md from the tests; `--check` only says whether it is up to date.

The tests are collected, not run: a case is a test with its parameters, one of which is the engine. So the
table says who is asked what; that the answers are right says a green run.
"""

from __future__ import annotations

import contextlib
import io
import sys
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.not_on_kafka import reason  # noqa: E402 - it needs the path

PAGE = ROOT / "docs" / "kafka.md"
TITLE = "## Promises by engine\n"
ENGINES = {"memory": "memory", "file_log": "file log", "kafka": "Kafka"}
VARIANTS = ("member", "log_member", "tiny_log")  # the file log again
CONTRACT = "contract/test_contract_"
# What a user is promised, by the file or the folder under tests/ that asks for it.
PROMISES = {
    CONTRACT
    + "append": "records are stored completely and in the order of the calls, with a result for each message",
    CONTRACT + "read": "a reader receives all messages within its limits, and a report of deleted messages",
    CONTRACT
    + "read_tags": "reading by tag returns all matching messages, and continues after skipped messages",
    CONTRACT + "carried": "a message's short form matches its complete form",
    CONTRACT + "wait": "a waiting reader is always woken, and immediately",
    CONTRACT
    + "commit": "a commit is all or nothing; a former owner of a queue is rejected; progress is exact",
    CONTRACT + "once": "a message with an identity is stored once, no matter how often it is sent (on Kafka, "
    "a numbered message only with `store_once: all`)",
    CONTRACT + "due": "a delay starts exactly at the store time",
    CONTRACT + "find": "messages can be found by time, key and id; store times never decrease",
    CONTRACT + "settings": "settings are durable, and watchers are notified of changes",
    CONTRACT + "topics": "topics can be created, enlarged, changed and deleted; a new topic inherits nothing",
    CONTRACT + "members": "a queue has one holder at a time; each new holder has a higher epoch; "
    "older epochs are rejected",
    CONTRACT + "sharing": "queues are shared as the group requests, and move if they are released or lost",
    CONTRACT + "lifecycle": "every call receives a result, even while the engine is draining and closing",
    CONTRACT + "lasting": "messages, topics, settings, progress and epochs survive a restart",
    CONTRACT + "killed": "acknowledged calls survive repeated kills (kill -9) of the writer",
    CONTRACT + "model": "long random histories produce the same results as a naive model",
    "interop": "five kinds of old clients, whose traffic was recorded, receive the responses that they "
    "expect",
    "scenarios": "servers: order keys, retries, dead letters, delay levels, push, results sent to another "
    "proxy",
    "service/cli": "the commands and the admin API",
    "service/kafka": "brokers and servers that are killed, suspended or cut off; full disks; foreign topics",
}
ALONE = {
    CONTRACT + "killed": "file_log",
    "service/kafka": "kafka",
}  # about one engine, which no parameter names
INTRO = """
This section is generated from the tests by the command `python tools/promises.py`. The table shows how many
test cases run on each engine with the same test code. The command `make test` runs the tests for the memory
engine and the file log, and `make test-kafka` runs the tests for Kafka on a real broker. The rows of the
table down to the naive model show the contract suite of the backend port. The contract suite is also run on
three variants of the file log, for example with tiny limits or in a process that is not the writer; these
additional runs are not counted in the table. The memory engine is a model that only tests use.
"""
HEAD = """
| promise | memory | file log | Kafka |
|---|---|---|---|
"""
UNBROKEN_WORDS: Mapping[str, bool] = {"break_on_hyphens": False, "break_long_words": False}
INTRO_UNSUPPORTED = """
The following list shows, for each engine, which test cases run only on other engines, and why. Names in code
font are test functions:
"""
ONE = """
**Some test cases run on only one engine**, although the folders contain the same tests for all engines:"""


class Case(NamedTuple):
    """One thing that is asked: a test of a file under tests/; its name has the parameters but the engine."""

    promise: str
    file: str
    name: str

    @property
    def test(self) -> str:
        """The name of the test function."""
        return self.name.partition("[")[0]


class CollectedCase(NamedTuple):
    """A test that pytest collected, with its engine. `why`: the reason if it is skipped there."""

    case: Case
    engine: str
    why: str = ""


class Collected:
    """Gets the tests from pytest."""

    def __init__(self) -> None:
        self.items: list[pytest.Item] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = session.items


def collect() -> list[pytest.Item]:
    """All tests behind PROMISES."""
    folders = sorted({f"tests/{name.partition('/test_')[0]}" for name in PROMISES})
    collected, output = Collected(), io.StringIO()
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(output):
        quiet = ("--collect-only", "-q", "-p", "no:xdist", "-p", "no:cacheprovider")
        code = pytest.main([*quiet, *folders], [collected])
    if code:
        raise SystemExit(output.getvalue())
    return collected.items


def promise_of(file: str) -> str:
    """Return the key of PROMISES that a file under tests/ belongs to, or ""."""
    stem = file.removesuffix(".py")
    promise = stem if stem in PROMISES else next((key for key in PROMISES if stem.startswith(f"{key}/")), "")
    if not promise and stem.startswith(CONTRACT):
        raise SystemExit(f"promises: tests/{file} stands for no promise in PROMISES of tools/promises.py")
    return promise


def find_case(item: pytest.Item) -> CollectedCase | None:
    """Return the case and engine of a test; None if it is about no promise or names no engine."""
    file = item.path.relative_to(ROOT / "tests").as_posix()
    promise = promise_of(file)
    if not promise:
        return None
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    named = [value for value in parameters if value in (*ENGINES, *VARIANTS)]
    engine = str(named[0]) if named else ALONE.get(promise, "")
    if engine not in ENGINES:
        return None
    name, _, rest = item.name.rstrip("]").partition("[")
    others = [parameter for parameter in rest.split("-") if parameter != engine] if named else [rest]
    skipped = item.get_closest_marker("skip")
    why = skipped.kwargs["reason"] if skipped is not None else ""
    return CollectedCase(Case(promise, file, f"{name}[{'-'.join(others)}]"), engine, why)


def find_unsupported(cases: dict[Case, dict[str, str]]) -> Iterator[CollectedCase]:
    """Yield the cases of the contract that an engine does not run, with the reason."""
    for case, engines in cases.items():
        if case.file.startswith(CONTRACT) and "memory" not in engines:
            yield CollectedCase(case, "memory", "the engine stores nothing on disk")
        if "kafka" not in engines:
            why = reason(case.file, case.name)
            if why is None:
                raise SystemExit(f"promises: {case.file} {case.name} is not asked of Kafka without a reason")
            yield CollectedCase(case, "kafka", why.text)


def group_cases(tests: Iterable[CollectedCase]) -> dict[Case, dict[str, str]]:
    """Return for each case its engines, each with the reason why it does not run the case, or ""."""
    cases: dict[Case, dict[str, str]] = defaultdict(dict)
    for case, engine, why in tests:
        cases[case][engine] = why
    for case, engine, why in list(find_unsupported(cases)):
        cases[case][engine] = why
    return cases


def rows(cases: dict[Case, dict[str, str]]) -> Iterator[str]:
    """The table of promises."""
    for promise, text in PROMISES.items():
        mine = [engines for case, engines in cases.items() if case.promise == promise]
        counts = [sum(engines.get(name) == "" for engines in mine) for name in ENGINES]
        cells = [str(count) if count in (0, len(mine)) else f"{count} of {len(mine)}" for count in counts]
        yield f"| {text} | {' | '.join('–' if cell == '0' else cell for cell in cells)} |\n"


def named(which: Iterable[Case], cases: Iterable[Case]) -> str:
    """Tests by their names; a promise in quotation marks stands for all of its own."""
    sizes, mine = Counter(case.promise for case in cases), list(which)
    counts = Counter(case.promise for case in mine)
    complete = {promise for promise in counts if counts[promise] == sizes[promise]}
    names = (f'"{PROMISES[case.promise]}"' if case.promise in complete else f"`{case.test}`" for case in mine)
    return ", ".join(dict.fromkeys(names))


def reasons(cases: dict[Case, dict[str, str]]) -> Iterator[str]:
    """List the cases that an engine does not run, with the reason of each."""
    cases_by_reason: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for case, engines in cases.items():
        for engine, why in engines.items():
            if why:
                cases_by_reason[engine, why].append(case)
    for (engine, why), which in sorted(
        cases_by_reason.items(), key=lambda row: (list(ENGINES).index(row[0][0]), row[0])
    ):
        count = f"{len(which)} case{'s' * (len(which) > 1)}"
        text = f"**{ENGINES[engine]}**, {count}: {why}. Tests: {named(which, cases)}."
        yield textwrap.fill(text, 120, initial_indent="* ", subsequent_indent="  ", **UNBROKEN_WORDS) + "\n"


def alone(cases: dict[Case, dict[str, str]]) -> str:
    """How many cases have one engine, by engine, and which."""
    cases_by_engine: dict[str, list[Case]] = defaultdict(list)
    for case, engines in cases.items():
        able = [name for name in ENGINES if engines.get(name) == ""]
        if len(able) == 1 and case.promise != "service/kafka":
            cases_by_engine[able[0]].append(case)
    counts = [
        f"{len(which)} cases run only on the {ENGINES[engine]}"
        for engine, which in sorted(cases_by_engine.items())
    ]
    tests = [
        f" The tests that run only on the {ENGINES[engine]} are {named(which, cases)}."
        for engine, which in sorted(cases_by_engine.items())
    ]
    last_row = "all cases in the last row of the table run only on Kafka"
    text = f"{ONE.strip()} {', '.join([*counts, 'and ' + last_row])}."
    text += "".join(tests)
    return fill_lines(text)


def section() -> str:
    """Return the complete section."""
    cases = group_cases(filter(None, map(find_case, collect())))
    table = HEAD + "".join(rows(cases))
    unsupported = fill_lines(INTRO_UNSUPPORTED) + "\n" + "".join(reasons(cases))
    return TITLE + fill_lines(INTRO) + table + unsupported + alone(cases)


def fill_lines(text: str) -> str:
    """Return a paragraph of the page, after an empty line, with lines as long as they may be."""
    return "\n" + textwrap.fill(text.strip(), 120, **UNBROKEN_WORDS) + "\n"


def main() -> int:
    """Write it, or with `--check` say whether it is up to date."""
    before, title, rest = PAGE.read_text().partition(TITLE)
    old, following, after = rest.partition("\n## ")
    if not title:
        raise SystemExit(f"promises: {PAGE.name} has no line {TITLE.strip()!r}")
    fresh = section()
    if "--check" in sys.argv:
        same = title + old == fresh
        print("promises: the table is up to date" if same else "promises: run `python tools/promises.py`")
        return 0 if same else 1
    PAGE.write_text(before + fresh + following + after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
