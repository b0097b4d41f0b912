"""Searches over what the admin API lists: the keys of all groups, the dead letters of one."""
