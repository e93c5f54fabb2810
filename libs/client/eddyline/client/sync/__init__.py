"""Eddyline's blocking client, for programs without an event loop: scripts, Django, Celery.

    from eddyline.client.sync import connect

    with connect("127.0.0.1:7701") as client:
        client.put("prices", b"BTC", b"42", create=True)
        for record in client.read("prices"): ...

Names, parameters, results and errors are those of the asyncio client `eddyline.client`, which has records, events and
errors.
"""

from eddyline.client.sync.append import Acknowledgement, AppendRun, AppendStream
from eddyline.client.sync.client import Client, Kv, Sources, connect
from eddyline.client.sync.items import Items
from eddyline.client.sync.watch import Watch

__all__ = ["Acknowledgement", "AppendRun", "AppendStream", "Client", "Items", "Kv", "Sources", "Watch", "connect"]
