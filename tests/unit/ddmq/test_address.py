"""HOST:PORT on the command line."""

import re
from pathlib import Path

import pytest

from ddmq.address import HostPort, parse, read_ready, ready_line
from ddmq.demo.story import demo

README = Path(__file__).resolve().parents[3] / "README.md"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9613", "127.0.0.1", 9613),
        ("[::1]:0", "::1", 0),
        ("proxy.example:65535", "proxy.example", 65535),
    ],
)
def test_what_is_an_address(text: str, host: str, port: int) -> None:
    address = parse(text)
    assert address == HostPort(host, port)
    assert str(address) == text


@pytest.mark.parametrize("text", ["", "9613", ":9613", "host:", "host:65536", "host:-1", "host:9 6"])
def test_what_is_not_is_told_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not HOST:PORT \(for example"):
        parse(text)


@pytest.mark.parametrize("folder", ["data", "/srv/my data/a=b", "/srv/ data-dir=x"])
def test_the_ready_line_tells_where_the_parts_are_whatever_the_directory_is_called(folder: str) -> None:
    addresses = {"producer": HostPort("127.0.0.1", 9613), "admin": HostPort("::1", 9813)}
    assert read_ready(ready_line(addresses, Path(folder)) + "\n") == addresses
    assert read_ready("") == read_ready("already\n") == {}


def test_the_readme_shows_the_ready_line_as_it_is() -> None:
    """The admin port answers first, and comes last."""
    ports = {"admin": 9813, "producer": 9613, "consumer": 9713}
    line = ready_line(
        {component: HostPort("127.0.0.1", port) for component, port in ports.items()}, Path("data")
    )
    assert f"\n{line}\n" in README.read_text(encoding="utf-8")


def test_the_readme_and_the_help_name_the_same_times_for_the_demo() -> None:
    readme, help_text = README.read_text(encoding="utf-8"), " ".join(str(demo.help).split())
    assert "Takes about 15 s on two free cores, and a minute or two with the report" in help_text
    assert "\n$ ddmq demo      # about 15 s on two free cores: " in readme
    assert re.search(
        r"^\$ make demo +# .* report by Spark: a minute or two on two free cores$", readme, re.MULTILINE
    )
