"""Which messages a subscription wants: by tag, or by an SQL expression over properties.

Pure. `expression_fault` says at once what is wrong with an expression; `filter_for` makes the filter that
core/queue_feed.py describes. docs/filters.md is the page for those who write expressions.
"""
