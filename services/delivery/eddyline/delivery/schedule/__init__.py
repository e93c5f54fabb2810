"""Pure: DWRR bands, pressure, in-flight bound, timers."""
