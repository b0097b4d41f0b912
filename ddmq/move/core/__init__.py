"""What decides in a move; it knows no engine, file or clock."""
