"""The two pictures, as PNG: no display, no state of matplotlib's own."""

from __future__ import annotations

from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Final

from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from matplotlib.axes import Axes

KEYS_SHOWN: Final = 12
MONTHS_NAMED: Final = 3
DPI: Final = 110
KEY_CHARS: Final = 36
_BLUE, _RED, _PALE = "#3b6ea5", "#b5524a", "#a9c4de"
_EACH: Final = {10: "each 10 seconds", 60: "each minute", 3_600: "each hour"}


def draw_expiry(by_month: pa.Table, path: Path) -> None:
    """Certificates by the month in which they expire."""
    counts = {_month(row["month"]): row["certificates"] for row in by_month.to_pylist() if row["month"] is not None}
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.bar(list(counts), list(counts.values()), color=_BLUE, width=0.9)
    years = sorted({month // 12 for month in counts})
    axes.set_xticks([12 * year for year in years], [str(year) for year in years], rotation=60, fontsize=7)
    for month in sorted(counts, key=lambda month: counts[month], reverse=True)[:MONTHS_NAMED]:
        axes.annotate(
            f"{month // 12}-{month % 12 + 1:02}", (month, counts[month]), ha="center", va="bottom", fontsize=7
        )
    axes.margins(y=0.12)
    axes.set_title(f"{sum(counts.values())} certificates, by the month in which they expire", fontsize=10)
    _finish(figure, axes, "certificates", path)


def draw_changes(per_time: pa.Table, per_key: pa.Table, path: Path) -> None:
    """Changes over time, and the keys and hours with most of them."""
    times, rows = per_time.to_pylist(), per_key.to_pylist()
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    axes, hot = figure.subplots(1, 2, width_ratios=(1.2, 1))
    seconds = times[0]["seconds"] if times else 60
    begins = [row["begin"] for row in times]
    deletes = [row["deletes"] for row in times]
    puts = [row["changes"] - row["deletes"] for row in times]
    width = timedelta(seconds=0.9 * seconds)
    axes.bar(begins, puts, color=_BLUE, label="put", width=width, align="edge")
    axes.bar(begins, deletes, bottom=puts, color=_RED, label="deleted", width=width, align="edge")
    axes.xaxis_date(UTC)
    ticks = AutoDateLocator(maxticks=6)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(ticks)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(ticks, tz=UTC))  # type: ignore[no-untyped-call]
    axes.tick_params(axis="x", labelsize=7)
    axes.margins(y=0.2)
    axes.legend(fontsize=8)
    axes.set_title(f"{sum(puts) + sum(deletes):,} changes, {_EACH[seconds]} (UTC)", fontsize=10)
    shown = rows[:KEYS_SHOWN][::-1]
    hot.barh(range(len(shown)), [row["changes"] for row in shown], color=_PALE)
    hot.set_yticks([])
    for place, row in enumerate(shown):
        # inside the axes, from the bar's beginning: a long key takes no room from the bars
        label = f" {row['key'][:KEY_CHARS]}  {row['hour']:%H:00}"
        hot.text(0, place, label, va="center", fontsize=7, clip_on=True)
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
