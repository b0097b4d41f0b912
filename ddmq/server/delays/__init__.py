"""The answers of the admin port about delayed messages; their backup and its restore."""
