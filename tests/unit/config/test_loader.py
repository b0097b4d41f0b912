"""Configuration errors name file, line, key, value and what is allowed."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from backend.records import Durability
from ddmq_common.config import load, resolved, rules
from ddmq_common.errors import ConfigError


@dataclass(frozen=True)
class Inner:
    retry_intervals_ms: tuple[int, ...] = field(default=(100, 150), metadata=rules(low=-1))


@dataclass(frozen=True)
class Outer:
    port: int = field(default=9613, metadata=rules(low=1, high=65535))
    body_bytes_max: int = 2
    name: str = "x"
    share: float = 0.5
    on: bool = True
    token: str = field(default="hidden", metadata=rules(secret=True))
    folder: Path | None = None
    durability: Durability = Durability.DURABLE
    inner: Inner = Inner()
    topics: dict[str, Inner] = field(default_factory=dict)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "proxy.yaml"
    path.write_text(text)
    return path


def test_all_kinds_of_values(tmp_path: Path) -> None:
    config = load(
        write(
            tmp_path,
            "port: 1\nbody_bytes_max: 2MiB\nname: y\nshare: 1\non: false\nfolder: /a\n"
            "durability: written\ninner: {retry_intervals_ms: [5, -1]}\ntopics: {t: {}}\n",
        ),
        Outer,
    )
    assert config == Outer(
        1, 2 << 20, "y", 1.0, False, "hidden", Path("/a"), Durability.WRITTEN, Inner((5, -1)), {"t": Inner()}
    )


def test_an_empty_file_gives_the_defaults(tmp_path: Path) -> None:
    assert load(write(tmp_path, "# nothing\n"), Outer) == Outer()


@pytest.mark.parametrize(
    ("text", "error_text"),
    [
        ("name: a\nprot: 1", "proxy.yaml:2: prot: unknown key; did you mean 'port'?"),
        ("zzz: 1", "zzz: unknown key; known are: body_bytes_max"),
        ("port: many", "proxy.yaml:1: port: is 'many'; a whole number is wanted"),
        ("port: true", "port: is True; a whole number is wanted"),
        ("port: 70000", "port: is 70000; allowed: 1 to 65535"),
        ("on: 1", "on: is 1; true or false is wanted"),
        ("inner: 3", "inner: is 3; a mapping with the keys of Inner is wanted"),
        ("inner:\n  retry_intervals_ms: 3", "proxy.yaml:2: inner.retry_intervals_ms: is 3; a list is wanted"),
        ("inner:\n  retry_intervals_ms: [-2]", "inner.retry_intervals_ms: is -2; allowed: -1 or more"),
        ("durability: best", "durability: is 'best'; allowed: written, durable, replicated"),
        ("port: 1\nport: 2", "proxy.yaml:2: port: stands twice, first at line 1"),
        ("a: [", "is not YAML"),
        ("topics: 3", "topics: is 3; a mapping is wanted"),
    ],
)
def test_a_wrong_file_is_told_in_one_line(tmp_path: Path, text: str, error_text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, text), Outer)
    assert error_text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read"):
        load(tmp_path / "none.yaml", Outer)


def test_secrets_are_masked_in_what_is_logged() -> None:
    shown = resolved(Outer())
    assert shown["token"] == "***"
    assert resolved(Outer(token=""))["token"] == "", "that none is set is no secret"
    assert shown["inner"] == {"retry_intervals_ms": (100, 150)}


@dataclass(frozen=True)
class Linked:
    urls: tuple[str, ...] = field(default=(), metadata=rules(urls=True))


def test_values_in_the_query_of_a_url_are_masked() -> None:
    shown = resolved(Linked(("http://h/in?apikey=s3cret&x=&y=2#z", "http://h/in")))
    assert shown["urls"] == ("http://h/in?apikey=***&x=&y=***#z", "http://h/in")


@pytest.mark.parametrize(
    "text",
    [
        "token: 31337",
        "token: [s3cret]",
        "token: {s3cret: s3cret}",
        "token: *s3cret",
        "token: !s3cret x",
        "token: 's3cret",
        "token: s3cret: s3cret",
        "token: 's3cret' s3cret",
        'token: "s3cret\\s3cret"',
        "token: s3cret\n\tport: 1",
        "inner: [s3cret]",
        "inner: s3cret",
        "urls: http://h/in?apikey=s3cret",
        "token: a\ntoken: s3cret",
    ],
)
def test_what_is_wrong_is_told_without_a_secret(tmp_path: Path, text: str) -> None:
    @dataclass(frozen=True)
    class Private(Outer, Linked):
        pass

    with pytest.raises(ConfigError, match=r"proxy\.yaml") as caught:
        load(write(tmp_path, text), Private)
    for secret in ("s3cret", "31337"):
        assert secret not in str(caught.value)
    assert "\n" not in str(caught.value)
