"""Sockets: a connection of the event loop with TLS, its timers, and the listener that bounds them."""
