"""Shared by every role: data model, codecs, errors, servers, channels, access, telemetry."""
