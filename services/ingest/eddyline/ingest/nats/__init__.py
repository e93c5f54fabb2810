"""Connection, JetStream API, raw client."""
