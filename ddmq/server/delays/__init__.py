"""What the admin port answers about delayed messages; their backup and its restore."""
