"""The routes of the admin API: one table of what it answers. docs/admin-api.md describes them at length."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from backend.port import Health
from ddmq.server.admin import dlq, dlq_changes, keys, offsets, topics
from ddmq.server.admin.access import (
    allowed_changes,
    allowed_plans,
)
from ddmq.server.admin.auth.routes import AUTH_ROUTES
from ddmq.server.admin.contract import bodies, queries
from ddmq.server.admin.contract.openapi import encode_document
from ddmq.server.admin.contract.route import Route
from ddmq.server.admin.contract.structs import (
    answers,
    change_answers,
    delay_answers,
    group_answers,
    live_answers,
    log_answers,
    operation_answers,
    process_answers,
    search_answers,
)
from ddmq.server.admin.contract.versions import group_version, topic_version
from ddmq.server.admin.lists import table
from ddmq.server.admin.processes.usage import collect_usage
from ddmq.server.admin.producer.sends import send_message
from ddmq.server.admin.search import dead_letters as dlq_search
from ddmq.server.admin.search import keys as all_keys
from ddmq.server.admin.search.export import export_page
from ddmq.server.admin.search.messages import search_messages
from ddmq.server.admin.search.retries import list_retries
from ddmq.server.delays.changes import change_message
from ddmq.server.delays.histogram import answer_histogram
from ddmq.server.delays.levels import count_levels
from ddmq.server.http.connection import JSON
from ddmq.server.http.routing import (
    AdminRequest,
    Text,
)


def health_fields(health: Health) -> dict[str, Any]:
    """Return the health as the admin API shows it: with a warning only if there is one."""
    fields = health._asdict()
    return fields if health.warning else {name: fields[name] for name in ("ready", "reason")}


def alive_answer(health: Health) -> dict[str, Any]:
    """Return the body of the response to GET /health."""
    return {"alive": True} | health_fields(health)


def ready_answer(health: Health) -> Text:
    """Return the response to GET /ready: status 200 if the process is ready, else 503."""
    return Text(JSON, msgspec.json.encode(health_fields(health)), 200 if health.ready else 503)


def _topic_version(api: Any, request: AdminRequest) -> str:
    return topic_version(api.backend, request.topic)


def _group_version(api: Any, request: AdminRequest) -> str:
    return group_version(api.backend, request.group)


ROUTES: tuple[Route, ...] = (
    Route("GET", "/health",
          '200 while the process is alive: `{"alive", "ready", "reason"}`, and `warning` if there is a '
          "problem with the setup",
          lambda api, _: alive_answer(api.health()), query=None, right="none", answer=answers.AliveAnswer),
    Route("GET", "/ready", "200 when sends are accepted; otherwise 503 with the reason",
          lambda api, _: ready_answer(api.health()),
          query=None, right="none", answer=answers.HealthAnswer, errors={503: answers.HealthAnswer}),
    Route("GET", "/metrics", "the metrics in Prometheus' text format, listed in [metrics.md](metrics.md)",
          lambda api, _: api.page.text(), query=None, right="metrics", answer=answers.MetricsText),
    Route("GET", "/openapi.json", "the description of all requests as an OpenAPI 3.1 document",
          lambda api, _: Text(JSON, encode_document(ROUTES)),
          query=None, right="none", answer=answers.Document),
    Route("GET", "/stats",
          "health, findings, topics, groups and all counters, as printed by `ddmq stats --json`",
          lambda api, r: api.stats(r), query=None, right="metrics", answer=answers.StatsAnswer),
    Route("GET", "/usage",
          "what each identity uses, and what its quotas have rejected; empty without rights",
          lambda api, r: collect_usage(api.used_parts, api.processes, r)[0], queries.ListQuery,
          right="metrics", answer=list[answers.UsageRow], listing=table.USAGE),
    Route("GET", "/findings",
          "what is wrong now, the most urgent first, as printed by `ddmq findings --json`",
          lambda api, r: api.list_findings(r), queries.ListQuery,
          right="metrics", answer=answers.ServerFindingsAnswer, listing=table.FINDINGS),
    Route("GET", "/snapshot",
          "the state of the server at this moment: totals, rates, and the groups that are furthest behind",
          lambda api, r: api.live.answer_snapshot(r),
          query=None, right="metrics", answer=live_answers.SnapshotAnswer),
    Route("GET", "/events", "the same snapshot every second, as a stream of server-sent events",
          lambda api, _: api.live.open_stream(),
          query=None, right="metrics", answer=live_answers.EventsText),
    Route("GET", "/history",
          "how totals, or the numbers of a busy topic or subscription, developed over the last 24 hours",
          lambda api, r: api.live.answer_history(r), queries.HistoryQuery,
          right="metrics", answer=live_answers.HistoryAnswer, errors={404: None}),
    Route("GET", "/processes", "the processes of the server: version, addresses, memory, and what they own",
          lambda api, r: api.processes.list_processes(r), queries.ListQuery,
          right="metrics", answer=process_answers.ProcessesAnswer, listing=table.PROCESSES),
    Route("GET", "/clients", "who is connected: the clients of groups, and the hosts of producers",
          lambda api, r: api.processes.list_clients(r), queries.ClientsQuery,
          right="describe", answer=process_answers.ClientsAnswer, listing=table.CLIENTS),
    Route("GET", "/config", "the settings of the process, and where each comes from; secrets are masked",
          lambda api, r: api.processes.list_settings(r), queries.ConfigQuery,
          right="metrics", answer=process_answers.ConfigAnswer),
    Route("GET", "/log", "the disk of the log: free space, what fills it, and what keeps its segments",
          lambda api, r: api.log.answer(r), right="metrics", answer=log_answers.LogAnswer),
    Route("POST", "/log/clean",
          "deletes segments of the log all of whose messages were stored before `before_ms`; `dry_run`",
          lambda api, r: api.log.clean(r), body=bodies.LogCleanBody,
          right="manage", answer=log_answers.LogCleanedAnswer),
    Route("GET", "/topics", "one row per topic; `internal=1` adds the system topics",
          lambda api, r: topics.list_topics(api.backend, internal=r.query.internal, page=r.page),
          queries.TopicsQuery, right="describe", answer=list[answers.TopicRow],
          listing=table.TOPICS),
    Route("GET", "/topics/{topic}",
          "the topic's settings and, in `by_queue`, the minimum and next offset of each queue",
          lambda api, r: topics.show_topic(api.backend, r.topic),
          right="describe", answer=answers.TopicAnswer, version=_topic_version),
    Route("POST", "/topics/{topic}", 'creates the topic or, with `"create": false`, changes it',
          lambda api, r: api.post_topic(r), body=bodies.TOPIC_SETTINGS,
          right="create or manage", answer=answers.TopicChangedAnswer, version=_topic_version),
    Route("DELETE", "/topics/{topic}", "deletes the topic and its messages",
          lambda api, r: topics.delete(api.backend, api.clock, r.topic),
          right="manage", answer=answers.EmptyAnswer, version=_topic_version),
    Route("GET", "/topics/{topic}/messages",
          "the newest messages, or the messages selected by `id=`, `key=`, `queue=&offset=`, or `time_ms=`",
          lambda api, r: api.messages.in_topic(r), queries.MessagesQuery,
          right="browse", answer=list[answers.MessageRow],
          listing=table.MESSAGES),
    Route("POST", "/topics/{topic}/search",
          "the messages that contain `text` or match the filter `sql`, in a range of time; changes nothing",
          lambda api, r: search_messages(api.backend, api.clock, r), body=bodies.MessageSearchBody,
          right="browse", answer=search_answers.MessagesFoundAnswer),
    Route("GET", "/retries", "the messages of a group that wait for a retry, one by one",
          lambda api, r: list_retries(api.backend, api.clock, r.query), queries.RetriesQuery,
          right="browse", answer=search_answers.RetriesAnswer, listing=table.RETRIES),
    Route("POST", "/retries",
          "delivers messages of a group now that wait at a delay level, or makes them dead letters: `group`, "
          "`action` (`now`, `dead_letter`), `level`, `messages`; `dry_run`",
          lambda api, r: api.retries.answer_anywhere(r), body=bodies.RetryChangeBody,
          right="operate", answer=search_answers.RetriesChangedAnswer),
    Route("POST", "/messages", "sends one message to `topic`, now or with a delay",
          lambda api, r: api.calls.answer_anywhere(r, partial(send_message, api.calls, api.levels)),
          body=bodies.MessageSendBody, right="send", answer=answers.MessageSentAnswer, errors={404: None}),
    Route("GET", "/messages/{id}",
          "the message with the specified id in any topic, as a list that contains one message or is empty",
          lambda api, r: api.messages.by_id(r), queries.MessageQuery,
          right="browse", answer=list[answers.MessageRow],
          listing=table.MESSAGE),
    Route("GET", "/messages/{id}/story", "everything that happened to the message ([story.md](story.md))",
          lambda api, r: api.stories.by_id(r), queries.StoryQuery,
          right="browse", answer=answers.StoryAnswer),
    Route("GET", "/topics/{topic}/story",
          "everything that happened to the message selected by `id=`, `key=` (the newest message with this "
          "key) or `queue=&offset=`",
          lambda api, r: api.stories.in_topic(r), queries.TopicStoryQuery,
          right="browse", answer=answers.StoryAnswer),
    Route("GET", "/groups",
          "one row per subscription, including the messages in flight at the consumer proxy of this process",
          lambda api, r: api.groups.list_subscriptions(r.page), queries.PageQuery,
          right="describe", answer=list[group_answers.SubscriptionRow],
          listing=table.GROUPS),
    Route("GET", "/lag",
          "one row per subscription as in `/groups`, including lag age and rates; the subscription that is "
          "furthest behind comes first",
          lambda api, r: api.groups.list_lags(r.query.group, r.query.count, r.visible()), queries.LagQuery,
          right="describe", answer=list[group_answers.SubscriptionLag],
          listing=table.LAGS),
    Route("GET", "/groups/{group}", "all details of one group, including up to `keys` blocked keys",
          lambda api, r: api.groups.show_group(r.group, r.query.keys), queries.GroupDetailQuery,
          right="describe", answer=group_answers.GroupShownAnswer, version=_group_version),
    Route("POST", "/groups/{group}", "subscribes the group to `topics` (a list), optionally with settings",
          lambda api, r: api.groups.create(r.group, r.body), body=bodies.GROUP_SETTINGS,
          right="create or manage", answer=group_answers.GroupCreatedAnswer, version=_group_version),
    Route("POST", "/groups/{group}/topics/{topic}",
          "creates the subscription or changes the specified settings",
          lambda api, r: api.groups.change(r.group, r.topic, r.body), body=bodies.SUBSCRIPTION_SETTINGS,
          right="create or manage", answer=group_answers.SubscriptionChangedAnswer, version=_group_version),
    Route("DELETE", "/groups/{group}",
          "deletes the group or one of its subscriptions, including its progress",
          lambda api, r: api.groups.delete(r.group, r.query.topic), queries.GroupTopicQuery,
          right="manage", answer=answers.EmptyAnswer, version=_group_version),
    Route("GET", "/groups/{group}/offsets", "the group's progress in each queue",
          lambda api, r: offsets.list_positions(api.backend, r.group, r.query.topic), queries.OffsetsQuery,
          right="describe", answer=list[answers.OffsetRow],
          listing=table.OFFSETS),
    Route("POST", "/groups/{group}/offsets", "resets the offsets: `topic`, `to`, `queue`, `dry_run`",
          lambda api, r: offsets.reset(api.backend, api.clock, r.group, r.body.topic, r.body.to, r.body.queue,
                                        r.body.dry_run),
          body=bodies.OffsetResetBody, right="operate", answer=answers.OffsetResetAnswer),
    Route("GET", "/groups/{group}/keys", "blocked and parked keys",
          lambda api, r: keys.list_blocked_keys(api.consumer, r.group, r.query.limit), queries.GroupKeysQuery,
          right="describe", answer=list[group_answers.BlockedKeyRow],
          listing=table.GROUP_KEYS),
    Route("POST", "/groups/{group}/keys",
          "parks, skips or replays a key: `action` (`park`, `skip`, `replay`) and `key`; with `replay` also "
          "`take_away`",
          lambda api, r: keys.act_on_key(api.consumer, r.group, r.body.action, r.body.key, r.body.take_away),
          body=bodies.KeyActionBody, right="operate", answer=group_answers.KeyActionAnswer),
    Route("GET", "/keys",
          "blocked and parked keys of all groups at the consumer proxy of this process, and their number by "
          "error",
          lambda api, r: all_keys.list_keys(
              api.backend, api.consumer, api.clock, all_keys.selection_of(r.query),
              all_keys.position_of(r.query), min(r.query.count, all_keys.COUNT_MAX)),
          queries.KeysQuery, right="describe", answer=group_answers.KeysAnswer,
          listing=table.KEYS),
    Route("GET", "/dlq", "one row per group that has a dead-letter topic",
          lambda api, r: dlq.list_dead_letters(api.backend, r.page), queries.PageQuery,
          right="describe", answer=list[answers.DeadLetterCounts],
          listing=table.DEAD_LETTER_GROUPS),
    Route("GET", "/dlq/{group}", "open dead letters, oldest first",
          lambda api, r: dlq_search.show_dead_letters(
              api.backend, api.clock, r.group, dlq_search.filter_of(r.query), dlq_search.order_of(r.query),
              min(r.query.count, dlq_search.SHOWN_MAX)),
          queries.DeadLettersQuery, right="describe", answer=answers.DeadLettersAnswer,
          listing=table.DEAD_LETTERS),
    Route("GET", "/dlq/{group}/facets",
          "the number of open dead letters by reason, error class, topic and hour",
          lambda api, r: dlq_search.count_facets(
              api.backend, api.clock, r.group, dlq_search.filter_of(r.query), dlq_search.order_of(r.query)),
          queries.DeadLetterFacetsQuery, right="describe", answer=answers.DeadLetterFacetsAnswer),
    Route("GET", "/dlq/{group}/export",
          "open dead letters with their bodies, as [one JSON document a line](#exporting-dead-letters)",
          lambda api, r: export_page(
              api.backend, api.clock, r.group, dlq_search.filter_of(r.query), r.query.after),
          queries.DeadLetterExportQuery, right="browse", answer=answers.ExportText),
    Route("POST", "/dlq/{group}/resend", "sends dead letters to GROUP again",
          lambda api, r: dlq_changes.resend(api.backend, api.clock, r.group, r.body),
          body=bodies.DeadLetterResendBody, right="operate and send", answer=answers.DeadLettersResentAnswer),
    Route("POST", "/dlq/{group}/purge",
          "discards dead letters without sending them: `all` dead letters, or the dead letters before "
          "`before_ms`; `dry_run`",
          lambda api, r: dlq_changes.purge(api.backend, api.clock, r.group, r.body),
          body=bodies.DeadLetterPurgeBody, right="operate", answer=answers.DeadLettersPurgedAnswer),
    Route("GET", "/transactions", "the open transactions, oldest first",
          lambda api, r: api.transactions.rows(r), queries.TransactionsQuery,
          right="describe", answer=answers.TransactionsAnswer,
          listing=table.TRANSACTIONS),
    Route("GET", "/transactions/{id}", "one transaction, or its outcome",
          lambda api, r: api.transactions.show(r),
          right="transact or browse", answer=answers.TransactionAnswer),
    Route("POST", "/transactions/{id}",
          "ends the transaction on behalf of its producer group; `action` is `commit` or `rollback`",
          lambda api, r: api.transactions.end(r),
          body=bodies.TransactionEndBody,
          right="transact and operate", answer=answers.TransactionEndedAnswer),
    Route("GET", "/delay", "the number of waiting messages of each topic, and the shards",
          lambda api, r: api.delay_lists.describe_shards(r),
          right="describe", answer=delay_answers.DelayAnswer),
    Route("GET", "/delay/messages", "waiting messages in the order of their due times",
          lambda api, r: api.delay_lists.list_messages(r), queries.DelaysQuery,
          right="describe", answer=delay_answers.DelaysAnswer,
          listing=table.DELAYS),
    Route("GET", "/delay/messages/{id}", "one message by its delay id or uuid",
          lambda api, r: api.delay_owners.answer_anywhere(r, api.delays.message),
          right="browse", answer=delay_answers.DelayStateAnswer),
    Route("POST", "/delay/messages/{id}",
          "changes one message: `action` (`cancel`, `fire`, `reschedule`, `hold`, `release`)",
          lambda api, r: api.calls.answer_anywhere(r, partial(change_message, api.calls)),
          body=bodies.DelayChangeBody, right="send",
          answer=delay_answers.DelayChangeAnswer, errors={404: delay_answers.DelayNotFoundAnswer}),
    Route("GET", "/delay/count", "the number of waiting messages",
          lambda api, r: api.delay_lists.count_messages(r), queries.DelayCountQuery,
          right="describe", answer=delay_answers.DelayCountAnswer),
    Route("GET", "/delay/histogram", "the number of waiting messages by due time",
          lambda api, r: answer_histogram(api.delay_owners, r), queries.DelayHistogramQuery,
          right="describe", answer=delay_answers.DelayHistogramAnswer),
    Route("GET", "/delay/levels", "the number of messages that wait at each delay level",
          lambda api, _: count_levels(api.backend, api.levels),
          queries.ListQuery, right="describe", answer=list[delay_answers.DelayLevelRow],
          listing=table.LEVELS),
    Route("POST", "/delay/backup", "copies all shards into a new `folder` below `backup_dir`",
          lambda api, r: api.delay_owners.answer_anywhere(r, api.delays.backup),
          body=bodies.DelayBackupBody, right="backup", answer=delay_answers.DelayBackupAnswer),
    Route("POST", "/operations",
          "plans an [operation](#operations) on everything that matches `filter`: `kind`, `action`, "
          "`dry_run`; changes nothing unless `dry_run` is false",
          lambda api, r: api.operations.make_plan(r.body), body=bodies.OperationPlanBody,
          right="operate or send", answer=operation_answers.OperationPlannedAnswer,
          errors={404: None, 409: None}),
    Route("GET", "/operations", "the plans of this process and all started operations, newest first",
          lambda api, r: api.operations.list_rows(allowed_plans(r)),
          queries.ListQuery, right="describe", answer=operation_answers.OperationsAnswer,
          listing=table.OPERATIONS),
    Route("GET", "/operations/{id}", "one plan or operation, including its progress",
          lambda api, r: api.operations.show_operation(r.path["id"]),
          right="describe", answer=operation_answers.OperationAnswer, errors={409: None}),
    Route("POST", "/operations/{id}/start",
          "starts the plan, or continues the operation: `token`, and optionally `rate`",
          lambda api, r: api.operations.start(r.path["id"], r.body), body=bodies.OperationStartBody,
          right="operate or send", answer=operation_answers.OperationAnswer, errors={409: None}),
    Route("GET", "/changes",
          "the last 1,000 changes of topics, groups, offsets, keys and others, newest first",
          lambda api, r: api.changes.list_changes(r.query, allowed_changes(r)), queries.ChangesQuery,
          right="describe", answer=change_answers.ChangesAnswer, listing=table.CHANGES),
    Route("GET", "/changes/{id}", "one change, with the state before and after",
          lambda api, r: api.changes.show_change(r.path["id"]),
          right="describe", answer=change_answers.ChangeAnswer),
    Route("POST", "/changes/{id}/undo", "[undoes](#undo) the change, unless its object was changed meanwhile",
          lambda api, r: api.changes.undo_change(r),
          right="manage or operate", answer=change_answers.ChangeAnswer, errors={409: None}),
    Route("POST", "/operations/{id}/stop", "stops the operation after the batch that is in progress",
          lambda api, r: api.operations.stop(r.path["id"]),
          right="operate or send", answer=operation_answers.OperationAnswer, errors={409: None}),
    *AUTH_ROUTES,
)  # fmt: skip
