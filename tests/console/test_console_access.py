"""The page Access of a server that checks rights: identities, tokens, explanations, and who did what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.console.obstacles import find_obstacles
from tests.console.pages import Console
from tests.scenarios.real_server import RealServer
from tests.support.rights import AdminClient, Who, write_rights
from tests.support.waits import until

APP = Who("billing", frozenset({("consume", "orders"), ("consume", "billing"), ("metrics", "")}))
SENDER = {"allow": ["send orders*", "create orders*"]}
Secured = tuple[RealServer, dict[str, str]]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("access")
    tokens = write_rights(
        folder / "conf", [APP], roles={"sender": SENDER}, legacy={"192.0.2.0/24": "billing"}
    )
    server = RealServer(folder, folder / "conf")
    try:
        AdminClient(server.start().ports["admin"], tokens["billing"]).request("DELETE", "topics", "orders")
        yield server, tokens
    finally:
        server.end()


def open_as(browser: Any, secured: Secured, who: str, **options: Any) -> Any:
    server, tokens = secured
    return Console.open(browser, server.ports["admin"], token=tokens[who], **options)


@pytest.fixture
def admin(browser: Any, secured: Secured) -> Iterator[Console]:
    with open_as(browser, secured, "root") as opened:
        yield opened
    assert opened.complaints == []


def ask(secured: Secured, token: str, *path: str) -> tuple[int, Any]:
    return AdminClient(secured[0].ports["admin"], token).request("GET", *path)


def test_a_token_is_made_shown_once_and_revoked(admin: Console, secured: Secured) -> None:
    page = admin.goto("access")
    admin.press("Make a token…")
    page.locator("dialog[open]").get_by_label("identity").fill("billing")
    page.locator("dialog[open]").get_by_label("what it is for").fill("laptop")
    page.locator("dialog[open]").get_by_label("expires after days").fill("30")
    page.locator("dialog[open]").get_by_text("--expires 30d").wait_for()
    admin.confirm("Make")
    assert "not shown again" in admin.outcome_of_change()
    token = page.locator("dialog[open] .effect code").inner_text()
    assert ask(secured, token, "auth")[1]["identity"] == "billing"
    admin.close_dialog()
    assert token not in page.content()
    assert token not in page.url
    row = page.locator("tr", has_text="laptop")
    row.get_by_role("button").click()
    admin.confirm("Revoke")
    admin.outcome_of_change()
    assert ask(secured, token, "auth")[0] == 401
    admin.close_dialog()
    row.wait_for(state="detached")


def test_an_explanation_can_be_shared_as_a_link(admin: Console) -> None:
    page = admin.goto("access?identity=billing&right=send&name=orders")
    page.get_by_text("identity 'billing' lacks the right `send orders`").wait_for()
    page.get_by_label("right", exact=True).select_option("consume")
    page.get_by_text("rule `consume orders`").wait_for()
    assert "right=consume" in page.url


def test_an_identity_sees_itself_and_what_it_lacks(browser: Any, secured: Secured) -> None:
    with open_as(browser, secured, "billing") as console:
        page = console.goto("access")
        page.get_by_text("others need the kind admin").wait_for()
        assert page.get_by_role("button", name="Make a token…").count() == 0
        assert page.locator("main").get_by_text("root", exact=True).count() == 0


def test_the_audit_log_shows_a_rejected_attempt_to_an_administrator(admin: Console) -> None:
    page = admin.goto("changes?who=billing&event=rejected")
    row = page.get_by_role("group", name="audit log").locator("tbody tr").first
    row.get_by_text("lacks the right `manage orders`").wait_for()
    row.get_by_role("link", name="billing").click()
    page.get_by_role("heading", name="Access").wait_for()
    assert "identity=billing" in page.url


@pytest.mark.parametrize("path", ["access?identity=billing&right=send&name=orders", "changes"])
def test_the_page_of_a_secured_server_has_no_obstacle(browser: Any, secured: Secured, path: str) -> None:
    with open_as(browser, secured, "root", bypass_csp=True) as console:
        page = console.goto(path)
        page.get_by_text("lacks the right").first.wait_for()
        page.locator("main table").first.wait_for()
        assert find_obstacles(page) == []


def test_the_dialog_with_a_token_has_no_obstacle(browser: Any, secured: Secured) -> None:
    with open_as(browser, secured, "root", bypass_csp=True) as console:
        page = console.goto("access")
        console.press("Make a token…")
        dialog = page.locator("dialog[open]")
        dialog.get_by_label("identity").fill("billing")
        assert find_obstacles(page, part="dialog[open]") == []
        console.confirm("Make")
        console.outcome_of_change()
        assert find_obstacles(page, part="dialog[open]") == []


def test_the_login_page_has_no_obstacle(browser: Any, secured: Secured) -> None:
    with Console.open(browser, secured[0].ports["admin"], bypass_csp=True) as console:
        page = console.goto("access")
        page.get_by_role("heading", name="Log in").wait_for()
        assert find_obstacles(page) == []
        page.get_by_label("Token").fill("nonsense")
        page.get_by_role("button", name="Log in").click()
        page.locator("main .problem", has_text="token").wait_for()
        page.get_by_role("button", name="Forget").wait_for()
        assert find_obstacles(page) == []


def test_the_login_page_takes_a_token(browser: Any, secured: Secured) -> None:
    server, tokens = secured
    with Console.open(browser, server.ports["admin"]) as console:
        page = console.goto("access")
        until(lambda: page.get_by_role("heading", name="Log in").count())
        page.get_by_label("Token").fill(tokens["root"])
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("heading", name="Identities").wait_for()
        assert tokens["root"] not in page.url
