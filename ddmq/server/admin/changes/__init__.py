"""The list of the last changes by the admin API, and their undo."""
