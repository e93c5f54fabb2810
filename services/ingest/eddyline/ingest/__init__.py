"""Ingest: NATS KV buckets and streams, copied to topics of the store."""
