"""Metrics, traces, probes and their exports."""
