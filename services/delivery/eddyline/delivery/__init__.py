"""Delivery: changes of topics, sent to gRPC subscribers."""
