"""Identities, rights, tokens and the audit log, as the admin API shows and changes them."""
