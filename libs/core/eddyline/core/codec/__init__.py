"""Protobuf and row bytes to and from the model."""
