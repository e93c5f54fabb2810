"""Eddyline's Python client (asyncio): `connect` makes one, `events` is what a watch yields."""
