"""Which of Dramatiq's tests run on our broker, and why the others do not."""

from __future__ import annotations

FILES = (
    "test_actors.py",
    "test_broker.py",
    "test_callbacks.py",
    "test_composition.py",
    "test_generic_actors.py",
    "test_messages.py",
    "test_rabbitmq.py",
    "test_redis.py",
    "test_results.py",
    "test_stub_broker.py",
    "test_worker.py",
)
_REASONS = {
    "of the stub broker alone: looks at its queues in memory": """
        test_actors_can_be_sent_messages
        test_worker_handles_non_numeric_eta_and_logs_warning test_worker_handles_none_eta
        test_stub_broker_can_be_flushed test_stub_broker_respects_prefetch
    """,
    "of the Redis broker alone: its client, its commands, its maintenance": """
        test_redis_unacked_messages_can_be_requeued test_redis_messages_can_be_dead_lettered
        test_redis_dead_lettered_messages_are_cleaned_up
        test_redis_messages_belonging_to_missing_actors_are_rejected
        test_redis_requeues_unhandled_messages_on_shutdown
        test_redis_requeues_unhandled_delay_messages_on_shutdown test_redis_broker_can_connect_via_url
        test_redis_broker_can_connect_via_client test_redis_consumer_ack_can_retry_on_connection_error
        test_redis_consumer_nack_can_retry_on_connection_error
        test_redis_join_race_condition
    """,
    "of the RabbitMQ broker alone: its connections, channels, declarations and priorities": """
        test_broker_uses_rabbitmq_if_not_set test_can_instantiate_brokers_without_middleware
        test_rabbitmq_broker_raises_an_error_if_given_invalid_parameter_combinations
        test_rabbitmq_broker_stops_retrying_declaring_queues_when_max_attempts_reached
        test_rabbitmq_broker_reconnects_after_enqueue_failure
        test_rabbitmq_workers_handle_rabbit_failures_gracefully
        test_rabbitmq_connections_can_be_deleted_multiple_times
        test_rabbitmq_channels_can_be_deleted_multiple_times
        test_ignore_scary_logs_filter_ignores_logs test_rabbitmq_close_only_registers_ignore_filter_once
        test_rabbitmq_broker_can_enqueue_messages_with_priority
        test_rabbitmq_broker_retries_declaring_queues_when_connection_related_errors_occur
        test_rabbitmq_broker_consuming_messages_re_declares_queues_when_declared_queue_disappears
        test_rabbitmq_broker_enqueueing_message_re_declares_queues_when_declared_queue_disappears
    """,
    "our broker also stores messages for queues that only other processes declare": """
        test_stub_broker_raises_queue_error_when_enqueueing_messages_on_undeclared_queues
    """,
    "consumes a queue that nobody has declared, which ours rejects as the stub broker does": """
        test_rabbitmq_consumers_ignore_unknown_messages_in_ack_and_nack
    """,
    "needs all messages to come before the worker's thread wakes: ours come over a connection": """
        test_actors_can_prioritize_work test_workers_process_messages_in_order
    """,
    "bounds the time of several messages, each of which waits for the disk here": """
        test_groups_execute_jobs_in_parallel test_groups_execute_inner_groups
        test_pipelines_expose_completion_stats
    """,
    "the fixture keeps the exceptions of rejected messages for `join`": """
        test_exception_from_actor_doesnt_leak
    """,
}
SKIPPED = {test: reason for reason, tests in _REASONS.items() for test in tests.split()}


def reason_to_skip(test: str) -> str | None:
    """Return why a test does not run here, or None."""
    return SKIPPED.get(test)
