"""Who may call what; keys, scopes, quotas, audit."""
