"""The decisions of a move; this package knows no engine, file or clock."""
