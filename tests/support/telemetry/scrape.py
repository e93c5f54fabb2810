"""Metrics as Prometheus sees them: scraped over HTTP or made in place, read by the library's own parser."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from eddyline.core.telemetry import names as telemetry
from eddyline.core.telemetry.metrics_text import metrics_text

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from prometheus_client.metrics_core import Metric as Family

    from eddyline.core.telemetry.metrics import Metric

SCRAPE_SECONDS_MAX = 90.0


class Scrape:
    """One scrape. `names` are those that the constants have: a counter's with its `_total`."""

    def __init__(self, text: bytes) -> None:
        families = list(text_string_to_metric_families(text.decode()))
        self.families: dict[str, Family] = {_name(family): family for family in families}
        assert len(self.families) == len(families), "a name comes twice"

    @property
    def names(self) -> set[str]:
        """All metrics, with or without series."""
        return set(self.families)

    @property
    def labels(self) -> set[str]:
        """All labels of all series."""
        return {name for family in self.families.values() for sample in family.samples for name in sample.labels}

    def value(self, name: str, **labels: str) -> float:
        """The value of one series; of a histogram how many were observed."""
        family = self.families[name]
        wanted = f"{name}_count" if family.type == "histogram" else name
        (value,) = [sample.value for sample in family.samples if sample.name == wanted and sample.labels == labels]
        return value

    def series(self, name: str) -> dict[tuple[str, ...], float]:
        """The values of all series by their labels' values."""
        return {tuple(sample.labels.values()): sample.value for sample in self.families[name].samples}


def constants(role: str) -> set[str]:
    """The names of a role's metrics, as `telemetry` has them."""
    return {value for name, value in vars(telemetry).items() if name.startswith(f"{role.upper()}_")}


def label_constants() -> set[str]:
    """Every label there may be."""
    return {value for name, value in vars(telemetry).items() if name.startswith("LABEL_")}


def documented(role: str) -> dict[str, str]:
    """The README's row of each metric."""
    text = (Path(__file__).parents[3] / f"services/{role}/README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(eddyline_\w+)`(?: \{[^}]*\})? \| [^|]* \| ([^|]*) \|$", text, re.MULTILINE)
    return dict(rows)


def check_complete(seen: Scrape, role: str) -> None:
    """Everything that the constants name and nothing else, meaning what the README says, with labels that have a bound."""
    assert seen.names == constants(role)
    assert {name: family.documentation for name, family in seen.families.items()} == documented(role)
    assert seen.labels - {"le"} <= label_constants()


def in_place(metrics: Sequence[Metric]) -> Scrape:
    """The scrape of these metrics."""
    return Scrape(metrics_text(metrics))


async def http_get(
    address: str,
    request: bytes = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    *,
    tls: ssl.SSLContext | None = None,
) -> tuple[int, bytes]:
    """One request, by TLS where `tls` is given; status and body."""
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(SCRAPE_SECONDS_MAX):
        reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
        writer.write(request)
        answer = await reader.read()
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


async def scrape(address: str) -> Scrape:
    """Scrape a role."""
    status, body = await http_get(address)
    assert status == 200
    return Scrape(body)


async def scraped_until(address: str, condition: Callable[[Scrape], bool]) -> Scrape:
    """Scrape until `condition` holds; the scrape that it holds for."""
    async with asyncio.timeout(SCRAPE_SECONDS_MAX):
        while not condition(seen := await scrape(address)):  # noqa: ASYNC110 - of another process: there is no event
            await asyncio.sleep(0.1)
        return seen


def _name(family: Family) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name
