"""Watch streams and their subscriptions: request, start, snapshot, log, end."""
