"""Certificates from files, checked and reloaded."""
