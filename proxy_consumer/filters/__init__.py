"""Selects the messages that a subscription receives: by tag, or by an SQL expression over properties.

Pure functions. `expression_fault` reports an invalid expression; `filter_for` builds the filter that
core/queue_feed.py describes. docs/filters.md is the page for people who write expressions.
"""
