"""NATS as the demo and the drills use it: the one place of the command that imports nats."""
