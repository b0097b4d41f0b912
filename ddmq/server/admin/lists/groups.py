"""Pages of subscriptions: by name, or by lag. Only the rows of a page are computed."""

from __future__ import annotations

from ddmq.server.admin.groups import AdminGroups
from ddmq.server.http.paging import ItemPage, PageRequest, slice_page


def page_subscriptions(groups: AdminGroups, page: PageRequest) -> ItemPage:
    """Return a page of the subscriptions, by group and topic."""
    selected = slice_page(page.select_names(groups.list_names()), tuple[str, str], page)
    return selected._replace(items=groups.describe_subscriptions(selected.items))


def page_lags(groups: AdminGroups, group: str | None, page: PageRequest) -> ItemPage:
    """Return a page of the subscriptions with their lag, by lag or by group and topic."""
    names = groups.list_names(group)
    if page.sort != "lag":
        selected = slice_page(page.select_names(names), tuple[str, str], page)
    else:
        if group is None:
            positions, is_fresh = groups.lags.read_order(names)
        else:
            positions, is_fresh = groups.lags.read_order_of_group(group, names)
        if page.is_filtered:
            positions = [each for each in positions if page.selects(*each[1:])]
        selected = slice_page(positions, tuple[int, str, str], page)
        selected = selected._replace(items=[each[1:] for each in selected.items], exact=is_fresh)
    return selected._replace(items=groups.describe_subscriptions(selected.items, with_lag=True))
