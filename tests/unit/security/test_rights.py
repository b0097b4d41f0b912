"""Rights and rules: what is allowed agrees with a model that has no shortcuts."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddmq_common.security.callers import CallerTable
from ddmq_common.security.certificate_names import CertificateNames
from ddmq_common.security.policy import IdentityEntry, Policy, RoleEntry, decide_right, explain_right
from ddmq_common.security.rights import CLUSTER_RIGHTS, NAME_RIGHTS, parse_rule

NAMES = ("orders", "orders-eu", "order", "billing", "%DLQ%billing", "%RETRY%orders", "%DELAY", "%DLQ%%DELAY")
PATTERNS = ("orders", "orders*", "order*", "billing", "*", "b*")
RULES = st.builds("{} {}".format, st.sampled_from(sorted(NAME_RIGHTS)), st.sampled_from(PATTERNS))
ALL_RULES = st.lists(st.one_of(RULES, st.sampled_from(sorted(CLUSTER_RIGHTS))), max_size=4)


def model_allows(kind: str, allow: list[str], right: str, name: str) -> bool:
    """Decide as the page describes it, by writing out every rule."""
    if kind == "admin":
        return True
    if right in CLUSTER_RIGHTS:
        return right in allow or (right, kind) == ("node", "node")
    for prefix in ("%DLQ%", "%RETRY%"):
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
            break
    if name.startswith("%"):
        return False
    written = [rule.split() for rule in allow if " " in rule]
    rights = {right, *(("browse", "consume", "manage", "operate") if right == "describe" else ())}
    return any(granted in rights and fnmatchcase(name, pattern) for granted, pattern in written)


@given(
    st.sampled_from(("client", "node", "admin")),
    ALL_RULES,
    ALL_RULES,
    st.lists(
        st.tuples(st.sampled_from(sorted(NAME_RIGHTS | CLUSTER_RIGHTS)), st.sampled_from(NAMES)), max_size=20
    ),
)
def test_decisions_and_cached_decisions_agree_with_the_model(
    kind: str, own: list[str], of_role: list[str], requests: list[tuple[str, str]]
) -> None:
    policy = Policy(
        {"app": IdentityEntry(kind, ("role",), tuple(own))}, {"role": RoleEntry(tuple(of_role))},
        {"10.0.0.0/8": "app"},
    )  # fmt: skip
    table = CallerTable(lambda: 0)
    table.apply(policy, {})
    caller = table.at_address("10.1.2.3")
    for right, name in requests * 2:
        expected = model_allows(kind, own + of_role, right, name)
        assert decide_right(policy.identities["app"], right, name).allowed is expected, (right, name)
        assert caller.has_right(right, name.encode()) is expected
        assert (caller.find_missing(right, name.encode()) is None) is expected


@given(ALL_RULES, ALL_RULES, st.sampled_from(sorted(NAME_RIGHTS)), st.sampled_from(NAMES))
def test_a_change_of_rules_reaches_a_caller_that_decided_before(
    before: list[str], after: list[str], right: str, name: str
) -> None:
    table = CallerTable(lambda: 0)
    table.apply(Policy({"app": IdentityEntry(allow=tuple(before))}, None, {"::1": "app"}), {})
    caller = table.at_address("::1")
    assert caller.has_right(right, name.encode()) is model_allows("client", before, right, name)
    table.apply(Policy({"app": IdentityEntry(allow=tuple(after))}, None, {"::1": "app"}), {})
    assert table.at_address("::1") is caller
    assert caller.has_right(right, name.encode()) is model_allows("client", after, right, name)
    table.apply(Policy({}), {})
    assert not caller.has_right(right, name.encode())


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("snd orders", "did you mean send"),
        ("", "is no right"),
        ("send", "allowed: send NAME, send PREFIX"),
        ("send a b", "allowed: send NAME"),
        ("send a*b", "not a name"),
        ("send a/b", "not a name"),
        ("metrics *", "write only metrics"),
        ("consume %DLQ%billing", "follows the rules for group G"),
    ],
)
def test_a_wrong_rule_is_rejected_with_what_is_allowed(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error.replace("*", r"\*")):
        parse_rule(text)


@pytest.mark.parametrize(
    ("entries", "roles", "legacy", "error"),
    [
        ({"a b": IdentityEntry()}, {}, {}, "is no name"),
        ({"a": IdentityEntry(roles=("x",))}, {"y": RoleEntry()}, {}, "no role 'x'; allowed: y"),
        ({"a": IdentityEntry(certificates=("a.example",))}, {}, {}, "allowed: DNS:NAME"),
        (
            {"a": IdentityEntry(certificates=("CN:x",)), "b": IdentityEntry(certificates=("CN:x",))},
            {}, {}, "belongs to a already",
        ),
        ({"a": IdentityEntry()}, {}, {"10.0.0.0/33": "a"}, "no address or network"),
        ({"a": IdentityEntry()}, {}, {"10.0.0.0/8": "b"}, "no identity 'b'; allowed: a"),
    ],
)  # fmt: skip
def test_a_wrong_policy_is_rejected(entries: dict, roles: dict, legacy: dict, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Policy(entries, roles, legacy)


def test_the_most_specific_network_decides_who_an_old_client_is() -> None:
    entries = {name: IdentityEntry() for name in ("wide", "narrow", "six")}
    policy = Policy(entries, {}, {"10.0.0.0/8": "wide", "10.1.0.0/16": "narrow", "fd00::/8": "six"})
    names = {
        address: identity.name if (identity := policy.find_by_address(address)) else None
        for address in ("10.1.2.3", "10.2.2.3", "::ffff:10.1.2.3", "fd00::1%eth0", "127.0.0.1", "nonsense")
    }
    assert names == {
        "10.1.2.3": "narrow", "10.2.2.3": "wide", "::ffff:10.1.2.3": "narrow", "fd00::1%eth0": "six",
        "127.0.0.1": None, "nonsense": None,
    }  # fmt: skip


def test_a_certificate_logs_in_by_its_uri_before_its_other_names() -> None:
    policy = Policy({"app": IdentityEntry(), "host": IdentityEntry(certificates=("DNS:h.example",))})
    host = ("h.example",)
    for names, identity in [
        (CertificateNames(("https://x", "ddmq:app"), host, ()), policy.identities["app"]),
        (CertificateNames((), host, ("app",)), policy.identities["host"]),
        (CertificateNames(("ddmq:unknown",), host, ()), None),
        (CertificateNames((), (), ("app",)), None),
    ]:
        assert policy.find_by_certificate(names) == identity


def test_an_explanation_names_the_rule_or_the_missing_right() -> None:
    policy = Policy({"app": IdentityEntry(roles=("sender",)), "root": IdentityEntry("admin")},
                    {"sender": RoleEntry(("send order*",))})  # fmt: skip
    assert explain_right(policy, "app", "send", "orders").reason == "rule `send order*` of role sender"
    assert explain_right(policy, "app", "consume", "%DLQ%billing").reason == (
        "identity 'app' lacks the right `consume billing`"
    )
    assert explain_right(policy, "root", "browse", "%DELAY").allowed
    with pytest.raises(ValueError, match="no identity 'nobody'; allowed: app, root"):
        explain_right(policy, "nobody", "send", "orders")
    with pytest.raises(ValueError, match="state the topic or group"):
        explain_right(policy, "app", "send", "")
