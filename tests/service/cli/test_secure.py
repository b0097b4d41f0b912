"""`ddmq secure`: the files of a secured installation, and the renewal of its certificates."""

from __future__ import annotations

import datetime
import re
import ssl
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ddmq.cli.root import root
from ddmq.secure import installation
from ddmq.server.config import load_folder
from ddmq_client.errors import OptionError
from ddmq_client.security.profiles import read_profile
from ddmq_common.errors import ConfigError
from ddmq_common.security.certificate_dates import read_expiries
from ddmq_common.security.certificates import CertificateFiles, build_contexts
from ddmq_common.security.files import load_rights
from ddmq_common.security.policy import decide_right
from ddmq_common.security.settings import PORTS, TlsMode
from ddmq_common.security.tokens import check_token

DAY = datetime.timedelta(days=1)
PRIVATE = ("ca.key", "server.key", "admin.key", "security.yaml", "security.tokens.json")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    return tmp_path / "conf"


def secure(*words: str) -> Result:
    return CliRunner().invoke(root, ["secure", *words])


def make(folder: Path, *words: str) -> Result:
    result = secure("init", "--host", "mq.example", "--host", "10.0.0.5", "--dir", str(folder), *words)
    assert result.exit_code == 0, result.output
    return result


def test_the_files_are_a_configuration_that_denies_everything_but_to_administrators(folder: Path) -> None:
    output = make(folder).output
    config = load_folder(folder)
    assert all(config.security.tls.mode_of(port) is TlsMode.REQUIRED for port in PORTS)
    assert config.serve.producer == "0.0.0.0:9613"
    assert config.serve.admin_names == ("mq.example", "10.0.0.5")
    build_contexts(config.security.tls)
    rights = load_rights(folder)
    assert rights is not None
    assert {name: identity.kind for name, identity in rights.policy.identities.items()} == {
        "admin": "admin",
        "node": "node",
    }
    assert rights.policy.find_by_address("10.1.2.3") is None
    assert not decide_right(rights.policy.identities["node"], "send", "orders").allowed
    for name in PRIVATE:
        assert (folder / name).stat().st_mode & 0o777 == 0o600, name
    assert folder.stat().st_mode & 0o777 == 0o700
    commands = re.findall(r"^  (ddmq .*)$", output, re.MULTILINE)
    assert len(commands) == 3
    assert f"serve --config {folder}" in commands[0]


def test_the_example_of_the_file_is_valid_once_it_is_not_a_comment(folder: Path) -> None:
    make(folder)
    path = folder / "security.yaml"
    text = path.read_text().replace("# billing:", "  billing:")
    path.write_text(text)
    rights = load_rights(folder)
    assert rights is not None
    assert decide_right(rights.policy.identities["billing"], "consume", "orders-eu").allowed
    path.write_text(
        text.replace("legacy: {}", "legacy:").replace("# 10.1.0.0/16: old-app", "  10.1.0.0/16: billing")
    )
    changed = load_rights(folder)
    assert changed is not None
    found = changed.policy.find_by_address("10.1.2.3")
    assert found is not None
    assert found.name == "billing"


def test_the_profile_has_the_token_of_an_administrator_and_is_private(folder: Path) -> None:
    token_shown = re.search(r"ddmq_[0-9a-f]{24}_", make(folder).output)
    assert token_shown is None, "a token stays in its file"
    profile = read_profile("mq.example")
    assert (profile.producer, profile.admin) == ("mq.example:9613", "mq.example:9813")
    assert Path(profile.ca).read_bytes() == (folder / "ca.crt").read_bytes()
    rights = load_rights(folder)
    assert rights is not None
    token = Path(profile.token_file)
    checked = check_token(rights.tokens, token.read_bytes().strip(), 0)
    assert checked is not None
    assert checked[1].identity == "admin"
    assert token.stat().st_mode & 0o777 == 0o600
    token.with_suffix(".yaml").chmod(0o640)
    with pytest.raises(OptionError, match="others may read it; run: chmod 600"):
        read_profile("mq.example")


def test_existing_files_are_replaced_only_by_force(folder: Path) -> None:
    make(folder)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    again = secure("init", "--host", "mq.example", "--dir", str(folder))
    assert again.exit_code == 1
    assert "ca.crt exists, and nothing was written; allowed:" in str(again.exception or again.output)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    make(folder, "--force")
    assert (folder / "ca.crt").read_bytes() != before[folder / "ca.crt"]
    assert (folder / "ddmq.yaml").read_bytes() == before[folder / "ddmq.yaml"], "settings are kept"


def test_a_renewed_certificate_fits_the_key_and_lasts_90_days(folder: Path) -> None:
    past = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    installation.make_installation(folder, folder / "home", ["mq.example"], "p", past, force=False)
    tls = load_folder(folder).security.tls
    files = CertificateFiles(tls)
    assert read_expiries((folder / "server.crt").read_bytes()) == [past + 90 * DAY]
    (authority_end,) = read_expiries((folder / "ca.crt").read_bytes())
    assert authority_end == past + 3650 * DAY
    key, before = (folder / "server.key").read_bytes(), files.contexts
    result = secure("renew", "--dir", str(folder), "--host", "mq-2.example")
    assert result.exit_code == 0, result.output
    assert (folder / "server.key").read_bytes() == key
    (server_end,) = read_expiries((folder / "server.crt").read_bytes())
    assert server_end - datetime.datetime.now(datetime.UTC) > 89 * DAY
    files.reload_changed()
    assert files.contexts is not before, "a running server takes it"
    names = ssl._ssl._test_decode_cert(str(folder / "server.crt"))["subjectAltName"]  # type: ignore[attr-defined]  # noqa: SLF001
    assert {("DNS", "mq.example"), ("DNS", "mq-2.example"), ("URI", "ddmq:node")} <= set(names)
    assert ("IP Address", "127.0.0.1") in names


def test_a_renewal_needs_the_ca_that_signed_the_certificate(folder: Path) -> None:
    make(folder)
    certificate = (folder / "server.crt").read_bytes()
    stranger = folder.with_name("other")
    make(stranger, "--profile", "other")
    (folder / "ca.key").rename(folder / "away")
    missing = secure("renew", "--dir", str(folder))
    assert "ca.key: cannot be read: No such file or directory; copy it back" in str(missing.exception)
    for name in ("ca.key", "ca.crt"):
        (folder / name).write_bytes((stranger / name).read_bytes())
    foreign = secure("renew", "--dir", str(folder))
    assert "server.crt: cannot be renewed: was not signed by this CA" in str(foreign.exception)
    assert (folder / "server.crt").read_bytes() == certificate


@pytest.mark.parametrize("host", ["mq example", "https://mq", "mq:9613", "", "-mq", "a" * 300])
def test_what_is_no_host_is_rejected(folder: Path, host: str) -> None:
    result = secure("init", "--host", host, "--dir", str(folder), "--profile", "p")
    assert isinstance(result.exception, ConfigError)
    assert "is no host; allowed: a host name or an IP address" in str(result.exception)
    assert not folder.exists()


def test_a_missing_library_is_named_with_its_remedy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.startswith(("ddmq.secure.", "cryptography")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    result = secure("init", "--host", "mq.example", "--dir", str(folder))
    assert result.exit_code == 1
    assert "pip install '.[secure]'" in result.output
