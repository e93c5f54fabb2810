"""Reads of the store on behalf of subscribers."""
