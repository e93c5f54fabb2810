"""Certificates from files, reloaded."""
