"""Delivery role: sends changes of topics to gRPC subscribers."""
