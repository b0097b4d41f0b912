"""Who may do what: identities, rules and tokens of conf/security.yaml."""
