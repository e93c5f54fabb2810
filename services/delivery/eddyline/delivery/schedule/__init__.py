"""Scheduling without an event loop: DWRR bands, pressure, in-flight bound, timers."""
