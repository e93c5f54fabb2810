"""Access to roles: keys, scopes, quotas, audit log."""
