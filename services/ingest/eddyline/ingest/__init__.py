"""Ingest: copies NATS JetStream into topics, each change once and in order."""
