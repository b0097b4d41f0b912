"""Form 2 of each list: its items, its orders, and what computes a page of it. The routes are in routes.py."""

from __future__ import annotations

from ddmq.server.admin.access import allowed_changes, allowed_plans
from ddmq.server.admin.contract.listing import Listing
from ddmq.server.admin.contract.structs import (
    answers,
    change_answers,
    delay_answers,
    finding_answers,
    group_answers,
    operation_answers,
    process_answers,
    search_answers,
)
from ddmq.server.admin.lists.dead_letters import page_dead_letters
from ddmq.server.admin.lists.groups import page_lags, page_subscriptions
from ddmq.server.admin.lists.keys import page_group_keys, page_keys
from ddmq.server.admin.lists.messages import page_messages
from ddmq.server.admin.lists.names import (
    page_changes,
    page_dead_letter_groups,
    page_findings,
    page_levels,
    page_offsets,
    page_operations,
    page_topics,
    page_transactions,
)
from ddmq.server.admin.lists.processes import page_clients, page_processes
from ddmq.server.admin.lists.retries import page_retries
from ddmq.server.admin.processes.usage import page_usage
from ddmq.server.admin.search.dead_letters import filter_of
from ddmq.server.admin.search.keys import selection_of
from ddmq.server.http.paging import ItemPage

FINDINGS = Listing(
    finding_answers.FindingRow,
    lambda api, r, page: page_findings(api.list_findings(r), page),
    ("severity", "-severity", "since_ms", "-since_ms"),
    answers.FindingsListing,
)
PROCESSES = Listing(
    process_answers.ProcessRow,
    lambda api, r, page: page_processes(api.processes, r, page),
    ("name", "-name"),
    first_form=("fields",),
)
USAGE = Listing(
    answers.UsageRow,
    lambda api, r, page: page_usage(api.used_parts, api.processes, r, page),
    ("identity", "-identity"),
)
CLIENTS = Listing(
    process_answers.ClientRow,
    lambda api, r, page: page_clients(api.processes, r, page),
    ("group", "-group"),
    first_form=("count", "after"),
)
RETRIES = Listing(
    search_answers.RetryRow,
    lambda api, r, page: page_retries(api.backend, api.clock, r.query.group, r.query.topic, page),
    ("level",),
    search_answers.RetriesListing,
    first_form=("count", "after"),
)
TOPICS = Listing(
    answers.TopicRow,
    lambda api, r, page: page_topics(api.backend, page, internal=r.query.internal),
    ("topic", "-topic"),
    first_form=("count", "after"),
)
MESSAGES = Listing(
    answers.MessageRow,
    lambda api, r, page: page_messages(api.messages, api.backend, r, page),
    ("-stored_ms", "stored_ms"),
    first_form=("count",),
)
MESSAGE = Listing(answers.MessageRow, lambda api, r, _: ItemPage(api.messages.by_id(r)))
GROUPS = Listing(
    group_answers.SubscriptionRow,
    lambda api, _, page: page_subscriptions(api.groups, page),
    ("group", "-group"),
    first_form=("count", "after"),
)
LAGS = Listing(
    group_answers.SubscriptionLag,
    lambda api, r, page: page_lags(api.groups, r.query.group, page),
    ("-lag", "lag", "group", "-group"),
    first_form=("count",),
)
OFFSETS = Listing(
    answers.OffsetRow,
    lambda api, r, page: page_offsets(api.backend, r.group, r.query.topic, page),
    ("topic", "-topic"),
)
GROUP_KEYS = Listing(
    group_answers.GroupKeyRow,
    lambda api, r, page: page_group_keys(api.consumer, r.group, page),
    ("group",),
    replaced=("limit",),
)
KEYS = Listing(
    group_answers.GroupKeyRow,
    lambda api, r, page: page_keys(api.backend, api.consumer, api.clock, selection_of(r.query), page),
    ("group",),
    group_answers.KeysListing,
    first_form=("count", "after", "text"),
    count_min=0,
)
DEAD_LETTER_GROUPS = Listing(
    answers.DeadLetterCounts,
    lambda api, _, page: page_dead_letter_groups(api.backend, page),
    ("group", "-group"),
    first_form=("count", "after"),
)
DEAD_LETTERS = Listing(
    answers.DeadLetterRow,
    lambda api, r, page: page_dead_letters(api.backend, api.clock, r.group, filter_of(r.query), page),
    ("offset", "-offset"),
    answers.DeadLettersListing,
    first_form=("count", "text"),
    replaced=("from", "order"),
)
TRANSACTIONS = Listing(
    answers.TransactionRow,
    lambda api, r, page: page_transactions(api.transactions, r.query.group, page),
    ("began_ms", "-began_ms"),
    first_form=("count",),
)
DELAYS = Listing(
    delay_answers.DelayRow,
    lambda api, r, page: api.delay_lists.page_messages(page, r),
    ("due_ms",),
    delay_answers.DelaysListing,
    first_form=("count", "after"),
)
LEVELS = Listing(
    delay_answers.DelayLevelRow,
    lambda api, _, page: page_levels(api.backend, api.levels, page),
    ("level", "-level"),
)
CHANGES = Listing(
    change_answers.ChangeAnswer,
    lambda api, r, page: page_changes(api.changes, page, allowed_changes(r)),
    ("-at_ms", "at_ms"),
    first_form=("count", "after"),
)
OPERATIONS = Listing(
    operation_answers.OperationRow,
    lambda api, r, page: page_operations(api.operations, page, allowed_plans(r)),
    ("-planned_ms", "planned_ms"),
)
