"""Tokens and the files of rights: nothing but the right secret logs in, and a broken file changes nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddmq_common.errors import ConfigError
from ddmq_common.security.callers import CallerTable, LoginRejectedError
from ddmq_common.security.files import (
    SECURITY_FILE,
    TOKENS_FILE,
    SecurityFiles,
    last_uses_ms,
    read_tokens,
    write_tokens,
)
from ddmq_common.security.tokens import (
    RANDOM_BYTES,
    check_token,
    decode_tokens,
    encode_tokens,
    make_token,
    parse_token_id,
)

RANDOM = st.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES)
POLICY = "identities:\n  app: {allow: [send orders]}\n"


@given(RANDOM, st.integers(0, 200), st.integers(0, 255))
def test_only_the_whole_secret_is_accepted_and_none_is_stored(random: bytes, at: int, byte: int) -> None:
    made = make_token(random, "app", "laptop", 1, 100)
    tokens = decode_tokens(encode_tokens({made.id: made.entry}))
    text = made.text.encode()
    assert check_token(tokens, text, 99) == (made.id, made.entry)
    assert check_token(tokens, text, 100) is None
    assert check_token({}, text, 99) is None
    changed = bytearray(text)
    changed[at % len(text)] = byte
    if bytes(changed) != text:
        assert check_token(tokens, bytes(changed), 99) is None
    assert random[12:].hex().encode() not in encode_tokens(tokens)
    assert random[12:].hex() not in repr(made)


@given(st.binary(max_size=200))
def test_no_other_text_is_a_token(text: bytes) -> None:
    token_id = parse_token_id(text)
    assert token_id is None or text.startswith(b"ddmq_" + token_id.encode())
    assert check_token({}, text, 0) is None


class RightsFolder:
    def __init__(self, folder: Path) -> None:
        self.folder, self.now_ms, self.changes = folder, 1_000, 0
        (folder / SECURITY_FILE).write_text(POLICY)
        self.table = CallerTable(lambda: self.now_ms)
        self.files = SecurityFiles(folder, self.table)
        self.made = make_token(bytes(RANDOM_BYTES), "app", "t", 0, 5_000)
        write_tokens(folder / TOKENS_FILE, {self.made.id: self.made.entry})
        self.files.start()
        self.table.on_change.append(self._count)

    def _count(self) -> None:
        self.changes += 1


def test_a_token_is_valid_until_it_is_revoked_or_expires(tmp_path: Path) -> None:
    rig = RightsFolder(tmp_path)
    login = rig.table.log_in(b"token", rig.made.text.encode())
    assert (login.caller.name, login.token_id, login.expires_ms) == ("app", rig.made.id, 5_000)
    rig.files.check()
    assert rig.changes == 0
    assert list(last_uses_ms(tmp_path, [rig.made.id, "f" * 24])) == [rig.made.id]
    rig.now_ms = 5_000
    rig.files.check()
    assert rig.changes == 1
    assert not rig.table.is_valid(rig.made.id)
    rig.now_ms = 1_000
    assert rig.table.is_valid(rig.made.id)
    write_tokens(tmp_path / TOKENS_FILE, {})
    rig.files.check()
    assert rig.changes == 2
    assert not rig.table.is_valid(rig.made.id)
    with pytest.raises(LoginRejectedError):
        rig.table.log_in(b"token", rig.made.text.encode())
    with pytest.raises(LoginRejectedError, match="mechanism is 'plain'; allowed: token"):
        rig.table.log_in(b"plain", b"a")


def test_a_removed_identity_ends_its_tokens_and_its_rights(tmp_path: Path) -> None:
    rig = RightsFolder(tmp_path)
    caller = rig.table.log_in(b"token", rig.made.text.encode()).caller
    assert caller.has_right("send", b"orders")
    (tmp_path / SECURITY_FILE).write_text("identities: {}\n")
    rig.files.check()
    assert not caller.has_right("send", b"orders")
    assert caller.find_missing("send", b"orders") == "identity 'app' lacks the right `send orders`"
    assert not rig.table.is_valid(rig.made.id)


@pytest.mark.parametrize("name", [SECURITY_FILE, TOKENS_FILE])
def test_a_broken_file_changes_nothing_and_is_reported(tmp_path: Path, name: str) -> None:
    rig = RightsFolder(tmp_path)
    caller = rig.table.log_in(b"token", rig.made.text.encode()).caller
    (tmp_path / name).write_text("identities: {app: {allow: [snd orders]}}")
    rig.files.check()
    assert name in rig.files.error
    assert rig.changes == 0
    assert caller.has_right("send", b"orders")
    (tmp_path / SECURITY_FILE).write_text(POLICY + "  other: {}\n")
    write_tokens(tmp_path / TOKENS_FILE, {rig.made.id: rig.made.entry})
    rig.files.check()
    assert (rig.files.error, rig.changes) == ("", 1)


@pytest.mark.parametrize("name", [SECURITY_FILE, TOKENS_FILE])
def test_a_file_that_everybody_may_write_is_not_used(tmp_path: Path, name: str) -> None:
    rig = RightsFolder(tmp_path)
    (tmp_path / name).chmod(0o666)
    rig.files.check()
    assert f"{name}: has mode 0666: others may write it" in rig.files.error
    assert rig.changes == 0
    with pytest.raises(ConfigError, match="others may write it"):
        SecurityFiles(tmp_path, rig.table).start()
    (tmp_path / name).chmod(0o664)
    rig.files.check()
    assert (rig.files.error, rig.changes) == ("", 1)


def test_a_link_to_other_rules_is_followed_and_a_half_of_them_is_not(tmp_path: Path) -> None:
    rig = RightsFolder(tmp_path)
    caller = rig.table.log_in(b"token", rig.made.text.encode()).caller
    path, other = tmp_path / SECURITY_FILE, tmp_path / "other.yaml"
    other.write_text(POLICY.replace("send orders", "send invoices"))
    path.unlink()
    path.symlink_to(other)
    rig.files.check()
    assert caller.has_right("send", b"invoices")
    assert not caller.has_right("send", b"orders")
    other.write_text("identities: {app: {allow: [send")
    rig.files.check()
    assert "is not YAML" in rig.files.error
    other.write_text(POLICY + POLICY)
    rig.files.check()
    assert "stands twice" in rig.files.error
    assert caller.has_right("send", b"invoices"), "what was in force before stays"


def test_rights_are_not_switched_off_by_a_file_that_is_gone(tmp_path: Path) -> None:
    rig = RightsFolder(tmp_path)
    (tmp_path / SECURITY_FILE).unlink()
    rig.files.check()
    assert "restart" in rig.files.error
    assert rig.changes == 0


def test_the_table_of_tokens_is_private_and_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / TOKENS_FILE
    made = make_token(bytes(RANDOM_BYTES), "app", "t", 0, 0)
    write_tokens(path, {made.id: made.entry})
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_tokens(path) == {made.id: made.entry}
    assert os.listdir(tmp_path) == [TOKENS_FILE]
    path.write_text("[]")
    with pytest.raises(ConfigError, match="is not a table of tokens"):
        read_tokens(path)
