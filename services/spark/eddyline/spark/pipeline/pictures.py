"""The two pictures, as PNG: no display, no state of matplotlib's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from matplotlib.axes import Axes

KEYS_SHOWN: Final = 12
DPI: Final = 110
_BLUE, _RED = "#3b6ea5", "#b5524a"


def draw_expiry(by_month: pa.Table, path: Path) -> None:
    """Certificates by the month in which they expire."""
    counts = {_month(row["month"]): row["certificates"] for row in by_month.to_pylist() if row["month"] is not None}
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.bar(list(counts), list(counts.values()), color=_BLUE, width=0.9)
    years = sorted({month // 12 for month in counts})
    axes.set_xticks([12 * year for year in years], [str(year) for year in years], rotation=60, fontsize=7)
    axes.set_title(f"{sum(counts.values())} certificates, by the month in which they expire", fontsize=10)
    _finish(figure, axes, "certificates", path)


def draw_changes(per_key: pa.Table, path: Path) -> None:
    """Changes by hour, and the keys and hours with most of them."""
    rows = per_key.to_pylist()
    hours: dict[str, list[int]] = {}
    for row in rows:
        held = hours.setdefault(f"{row['hour']:%m-%d %H:00}", [0, 0])
        held[0] += row["changes"] - row["deletes"]
        held[1] += row["deletes"]
    names = sorted(hours)
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    axes, hot = figure.subplots(1, 2, width_ratios=(1, 1.2))
    puts, deletes = ([hours[name][place] for name in names] for place in (0, 1))
    axes.bar(names, puts, color=_BLUE, label="put", width=0.6)
    axes.bar(names, deletes, bottom=puts, color=_RED, label="deleted", width=0.6)
    axes.margins(x=0.4 if len(names) < 3 else 0.05)
    axes.tick_params(axis="x", rotation=60 if len(names) > 4 else 0, labelsize=7)
    axes.margins(y=0.2)
    axes.legend(fontsize=8)
    axes.set_title("changes by hour (UTC)", fontsize=10)
    shown = rows[:KEYS_SHOWN][::-1]
    hot.barh(range(len(shown)), [row["changes"] for row in shown], color=_BLUE)
    hot.set_yticks(range(len(shown)), [f"{row['key'][:28]}  {row['hour']:%H:00}" for row in shown], fontsize=7)
    hot.set_title("most changes of a key in an hour", fontsize=10)
    hot.xaxis.set_major_locator(MaxNLocator(integer=True))
    _finish(figure, axes, "changes", path)


def _month(shown: str) -> int:
    year, month = shown.split("-")
    return 12 * int(year) + int(month) - 1


def _finish(figure: Figure, axes: Axes, what: str, path: Path) -> None:
    axes.set_ylabel(what)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    figure.savefig(path, dpi=DPI, metadata={"Software": None})
