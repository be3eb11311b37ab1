"""A comparison of policies as one SVG picture, drawn by hand: three panels of bars over the same policies."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from fairlane.sim.load.workload import CLASSES

COLOURS = ("#b2182b", "#ef8a62", "#67a9cf", "#2166ac")
WIDTH, HEIGHT, MARGIN, LABELS = 260, 220, 50, 60


def svg(rows: Sequence[dict[str, Any]]) -> str:
    """Goodput, attainment by class and share of service by class, for rows as `report.row` makes them."""
    most = max((row["goodput"] or 0.0 for row in rows), default=0.0) or 1.0
    panels = [
        _panel(0, "goodput, cost units/s", rows, [[(row["goodput"] or 0.0, "#555555")] for row in rows], most),
        _panel(1, "attainment by class", rows, [_by_class(row["attainment"]) for row in rows], 1.0),
        _panel(2, "share of service by class", rows, [_by_class(row["share"]) for row in rows], 1.0),
    ]
    legend = "".join(
        f'<rect x="{MARGIN + i * 90}" y="{HEIGHT + MARGIN + LABELS}" width="10" height="10" fill="{colour}"/>'
        f'<text x="{MARGIN + 14 + i * 90}" y="{HEIGHT + MARGIN + LABELS + 9}">{escape(name)}</text>'
        for i, (name, colour) in enumerate(zip(CLASSES, COLOURS, strict=True))
    )
    size = f'width="{3 * (WIDTH + MARGIN) + MARGIN}" height="{HEIGHT + MARGIN + LABELS + 20}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">{"".join(panels)}{legend}</svg>\n'


def _by_class(values: dict[str, float | None]) -> list[tuple[float, str]]:
    return [(values[name] or 0.0, colour) for name, colour in zip(CLASSES, COLOURS, strict=True)]


def _panel(place: int, title: str, rows: Sequence[dict[str, Any]], bars: Sequence[Sequence[tuple[float, str]]], most: float) -> str:
    left, floor = MARGIN + place * (WIDTH + MARGIN), MARGIN + HEIGHT
    parts = [
        f'<text x="{left}" y="{MARGIN - 12}" font-weight="bold">{escape(title)}</text>',
        f'<line x1="{left}" y1="{floor}" x2="{left + WIDTH}" y2="{floor}" stroke="black"/>',
        f'<text x="{left - 4}" y="{MARGIN + 4}" text-anchor="end">{most:.6g}</text>',
        f'<text x="{left - 4}" y="{floor}" text-anchor="end">0</text>',
    ]
    step = WIDTH / max(1, len(rows))
    for i, (row, group) in enumerate(zip(rows, bars, strict=True)):
        width = 0.8 * step / len(group)
        for j, (value, colour) in enumerate(group):
            height = HEIGHT * value / most
            x = left + i * step + 0.1 * step + j * width
            parts.append(f'<rect x="{x:.1f}" y="{floor - height:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>')
        middle, below = f"{left + (i + 0.5) * step:.1f}", floor + 12
        turned = f'text-anchor="end" transform="rotate(-35 {middle} {below})"'
        parts.append(f'<text x="{middle}" y="{below}" {turned}>{escape(row["policy"])}</text>')
    return "".join(parts)
