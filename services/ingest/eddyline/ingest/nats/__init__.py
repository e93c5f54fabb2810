"""Connection to NATS, JetStream's API, and the raw client."""
