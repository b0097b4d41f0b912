"""Every fenced block of README.md and docs/ is run by a test, checked by one here, or a picture (`text`).

A block whose language, command or page has no entry in these tables fails. `console` and `sh`: the classes of
tests/support/page_classes.py.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import google_crc32c
import pytest
import yaml

from backend.engines import GROUP
from backend.file_log.start.format_file import decode_format, encode_format
from ddmq.address import ADMIN
from ddmq.cli.root import root
from ddmq.server.config import KEYS, load_folder
from ddmq_client import idl
from ddmq_common.errors import ConfigError
from ddmq_common.metrics.catalogue import CATALOGUE
from ddmq_common.metrics.samples import decode
from tests.support.page_classes import COMMANDS, PYTHON, RUN, class_of
from tests.support.pages import PAGES, ROOT, Block, Command, blocks, commands, page_blocks, read_blocks

Load = Callable[[Path, Any], None]


def load_file(name: str, *keys: str) -> Load:
    """Return what loads a YAML block, put under `keys`, as a file of the configuration folder."""

    def load(folder: Path, tree: Any) -> None:
        for key in reversed(keys):
            tree = {key: tree}
        (folder / name).write_text(json.dumps(tree))
        load_folder(folder)

    return load


def check_prometheus(_: Path, tree: Any) -> None:
    """The rules exist, and the targets are admin ports."""
    assert [name for name in tree["rule_files"] if not (ROOT / "conf/prometheus" / name).exists()] == []
    targets = [
        target
        for job in tree["scrape_configs"]
        for static in job["static_configs"]
        for target in static["targets"]
    ]
    assert {target.rpartition(":")[2] for target in targets} == {str(ADMIN.port)}


def check_format(line: bytes) -> None:
    """The line, followed by its CRC, is what the log writes."""
    salting = decode_format(b"%s\n%08x\n" % (line, google_crc32c.value(line + b"\n")))
    assert encode_format(salting).startswith(line)


def check_chart_values(_: Path, values: dict[str, Any]) -> None:
    """The chart has every value."""
    check_keys(json.loads((ROOT / "conf/helm/ddmq/values.schema.json").read_text()), values)


def check_keys(schema: dict[str, Any], values: dict[str, Any]) -> None:
    for key, value in values.items():
        if "properties" in schema:
            assert key in schema["properties"], key
            if isinstance(value, dict):
                check_keys(schema["properties"][key], value)


YAML: dict[str, Load] = {
    "docs/alerts.md": check_prometheus,
    "docs/delay.md": load_file("proxy_producer.yaml"),
    "docs/kafka-security.md": load_file("backend.yaml"),
    "docs/kubernetes.md": check_chart_values,
    "docs/push.md": load_file("groups.yaml", "groups", "billing", "topics", "orders"),
    "docs/retention.md": load_file("file_log.yaml"),
    "docs/security.md": load_file("security.yaml"),
}
JSON: dict[str, Callable[[bytes], object]] = {
    "docs/formats.md": check_format,
    "docs/formats-samples.md": decode,
}
PACKAGES = "ddmq_client", "ddmq_command", "ddmq_common", "ddmq_rpc"
OTHER_NAMES = {  # fixtures, options of Dramatiq's broker, a label of the metrics job, a wheel
    "ddmq_broker", "ddmq_server", "ddmq_key", "ddmq_idempotency_key", "ddmq_delay_id", "ddmq_process",
    "ddmq_proxy",
}  # fmt: skip
LANGUAGES = {"python", "console", "sh", "yaml", "json", "toml", "thrift", "diff", "text"}


def parametrize_blocks(*languages: str) -> Any:
    return pytest.mark.parametrize("block", blocks(*languages), ids=str)


def list_unrun_commands() -> list[Command]:
    return [
        command
        for block in blocks("console", "sh")
        for command in commands(block)
        if class_of(command) is not RUN
    ]


def test_every_block_has_a_language_that_is_tested() -> None:
    assert {str(block): block.language for block in blocks() if block.language not in LANGUAGES} == {}
    assert len(blocks()) > 100


def test_every_command_has_a_class() -> None:
    classes = [class_of(command) for block in blocks("console", "sh") for command in commands(block)]
    assert [start for start, each in COMMANDS.items() if each not in classes] == []


def test_a_block_of_commands_has_one() -> None:
    assert [str(block) for block in blocks("console", "sh") if not list(commands(block))] == []


def test_a_picture_has_no_commands() -> None:
    assert [str(block) for block in blocks("text") if re.search(r"^\$ ", block.text, re.MULTILINE)] == []


@pytest.mark.parametrize("command", list_unrun_commands(), ids=str)
def test_a_command_that_is_not_run_is_one_that_exists(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    class_of(command).check(command)


@parametrize_blocks("python")
def test_python_can_be_compiled(block: Block) -> None:
    compile(block.text, str(block), "exec")


def test_pages_with_python_of_their_own_are_run_by_the_tests_that_are_named() -> None:
    for page, tests in PYTHON.items():
        assert page_blocks(page, "python"), page
        for test in tests:
            assert page in (ROOT / test).read_text(encoding="utf-8"), (page, test)


def test_every_program_of_examples_is_run() -> None:
    text = (ROOT / "tests/scenarios/test_applications.py").read_text(encoding="utf-8")
    assert [
        path for path in (ROOT / "examples").iterdir() if f'"{path.name}"' not in text and path.is_file()
    ] == []


@parametrize_blocks("yaml")
def test_yaml_is_loaded(block: Block, tmp_path: Path) -> None:
    file = re.match(r"# conf/(\w+\.yaml)\n", block.text)  # of another file than the others of its page
    load = YAML[block.page] if file is None else load_file(file[1])
    load(tmp_path, yaml.safe_load(block.text))


@parametrize_blocks("json")
def test_json_is_compared_with_the_answer(block: Block) -> None:
    JSON[block.page](json.dumps(json.loads(block.text), separators=(",", ":")).encode())


@parametrize_blocks("toml")
def test_toml_names_the_entry_points_that_are_read(block: Block) -> None:
    ((group, points),) = tomllib.loads(block.text)["project"]["entry-points"].items()
    assert group == GROUP
    assert all(re.fullmatch(r"[\w.]+:\w+", value) for value in points.values())


@parametrize_blocks("thrift")
def test_thrift_is_in_the_contract(block: Block) -> None:
    folder = Path(idl.__file__).parent
    texts = [path.read_text().splitlines() for path in folder.glob("*.thrift")]
    contract = {line.partition("//")[0].strip() for text in texts for line in text}
    assert [line for line in block.text.splitlines() if line.strip() not in contract] == []


@parametrize_blocks("diff")
def test_the_new_lines_of_a_diff_run(block: Block) -> None:
    exec(compile("\n".join(re.findall(r"^\+(.*)$", block.text, re.MULTILINE)), str(block), "exec"), {})


def read_commands(text: str) -> list[Command]:
    """Return the commands of a page with one block of the language `console`."""
    (block,) = read_blocks("page.md", f"# Page\n\n```console\n{text}```\n")
    return list(commands(block))


def test_commands_are_read_with_variables_comments_and_output() -> None:
    first, last = read_commands(
        "$ A=1 ddmq lag \\\n  --json 2> log &   # of all\n$ cd x && ddmq tx list '#'\nnone\n"
    )[::2]
    assert (first.words, first.variables, first.output) == (("ddmq", "lag", "--json"), {"A": "1"}, [])
    assert (last.words, last.output, str(last)) == (
        ("ddmq", "tx", "list", "#"), ["none"], "page.md:4: ddmq tx list '#'"
    )  # fmt: skip


def test_a_variable_that_is_exported_is_one_of_the_commands_behind_it() -> None:
    assert read_commands("$ export A=1\n$ ddmq serve\n")[1].variables == {"A": "1"}


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("frobnicate orders", KeyError),
        ("kubectl apply -f x", KeyError),
        ("ddmq serve --datadir x", click.UsageError),
        ("ddmq serve --backend kafka --bootstrap nowhere", ConfigError),
        ("DDMQ_RPC__IDLE=1 ddmq serve", ConfigError),
        ("ddmq kafka up --broker 3", click.UsageError),
        ("pip install '.[sparks]'", AssertionError),
        ("pip install 'dramatiq>=1.0'", AssertionError),
        ("make tests", AssertionError),
        ("python -m metrics_job batch --sample x --out y", click.UsageError),
        ("python -m ddmq.nothing", AssertionError),
        ("docker build -f conf/docker/None .", AssertionError),
        ("helm install queue conf/helm/ddmq --set replica=3", AssertionError),
    ],
)
def test_a_command_with_an_unknown_name_fails(line: str, error: type[Exception]) -> None:
    (command,) = read_commands(f"$ {line}\n")
    with pytest.raises(error):
        class_of(command).check(command)


@pytest.mark.parametrize("page", sorted(YAML.keys() - {"docs/alerts.md", "docs/kubernetes.md"}))
def test_a_key_that_does_not_exist_fails(page: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="frobnicate"):
        YAML[page](tmp_path, {"frobnicate": 1})


def find_unknown_words(line: str) -> str:
    """Return the first word of a command line within a sentence, or its options, that ddmq does not have."""
    command: click.Command = root
    words = line.split()
    while isinstance(command, click.Group) and words and not words[0].startswith(("…", "COMMAND", "--")):
        name = words.pop(0)
        subcommand = command.get_command(click.Context(command), name)
        if subcommand is None:
            return name
        command = subcommand
    options = {"--help", *(option for parameter in command.params for option in parameter.opts)}
    return " ".join(word for word in words if word.startswith("--") and word not in options)


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_options_within_sentences_exist(page: str) -> None:
    lines = re.findall(r"`ddmq ([^`]+)`", (ROOT / page).read_text())
    assert {line: find_unknown_words(line) for line in lines if find_unknown_words(line)} == {}


@pytest.mark.parametrize("page", PAGES)
def test_metrics_and_variables_that_are_named_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    names = set(re.findall(r"\bddmq_[a-z_]+", text)) - {*CATALOGUE, *OTHER_NAMES}
    assert {name for name in names if not name.startswith(PACKAGES)} == set()
    variables = set(re.findall(r"\bDDMQ_(?:[A-Z0-9]+_)*?_[A-Z0-9_]+\b", text))
    assert variables - {"DDMQ_FILE__KEY", "DDMQ__KEY"} <= {key.variable for key in KEYS}
