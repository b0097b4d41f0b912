"""Pages of subscriptions: by name, or by lag. Only the rows of a page are computed."""

from __future__ import annotations

from ddmq.server.admin.groups import AdminGroups
from ddmq.server.http.paging import ItemPage, PageRequest, select_page

Name = tuple[str, str]  # group, topic


def page_subscriptions(groups: AdminGroups, page: PageRequest) -> ItemPage:
    """Return a page of the subscriptions, by group and topic."""
    matches = page.select_names(groups.list_names())
    selected = select_page(matches, lambda name: name, tuple[str, str], page)
    return selected._replace(items=groups.describe_subscriptions(selected.items))


def page_lags(groups: AdminGroups, group: str | None, page: PageRequest) -> ItemPage:
    """Return a page of the subscriptions with their lag, by lag or by group and topic."""
    matches = page.select_names(groups.list_names(group))
    lags: dict[Name, int] = {}
    is_fresh = True
    if page.sort == "lag":
        lags, is_fresh = groups.lags.read_lags(matches)

    def position_of(name: Name) -> tuple[int, str, str]:
        return lags.get(name, 0), *name

    selected = select_page(matches, position_of, tuple[int, str, str], page)
    rows = groups.describe_subscriptions(selected.items, with_lag=True)
    return selected._replace(items=rows, exact=is_fresh)
