"""Which messages a subscription wants: by tag, or by an SQL expression over properties.

Pure. `expression_fault` says at once what is wrong with an expression; `gate_for` makes the gate that
core/gate.py describes. docs/filters.md is the page for those who write expressions.
"""
