"""The figures as SVG: one bar for each rate, and one for each target."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from msgspec import Struct

from semel_bench.figures import Figure, readable

_LABEL: Final = 330
_BAR: Final = 320
_VALUE: Final = 190
_ROW: Final = 20
_TITLE: Final = 34
_MARGIN: Final = 12
_WIDTH: Final = _LABEL + _BAR + _VALUE + 2 * _MARGIN
_SCORE_MAX: Final = 2.0  # a bar of full width is twice the target

_BLUE: Final = "#3b6ea8"
_GREEN: Final = "#3a8f5c"
_RED: Final = "#b8503e"
_STYLE: Final = (
    "text{font:12px system-ui,sans-serif;fill:#1f2328}"
    ".title{font-weight:600;font-size:13px}"
    ".page{fill:#fff}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#0d1117}}"
)


class Bar(Struct, frozen=True):
    """One row. `share` is the part of the width that its bar fills, 0 to 1."""

    label: str
    share: float
    text: str
    colour: str


def save_svg(path: Path, figures: Sequence[Figure]) -> None:
    """Write an SVG file: the peers next to each other, and every figure against its target."""
    parts: list[str] = []
    top = float(_MARGIN)
    rates = [figure for figure in figures if figure.is_rate]
    if rates:
        drawn, top = _panel("durable appends per second", _rate_bars(rates), top)
        parts += drawn
    judged = [figure for figure in figures if figure.score is not None]
    if judged:
        drawn, top = _panel("against the targets (the line)", _score_bars(judged), top, mark=0.5)
        parts += drawn
    height = top + _MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}"'
        f' width="{_WIDTH}" height="{height:.0f}" role="img" aria-label="semel bench">'
    )
    page = f'<rect class="page" width="{_WIDTH}" height="{height:.0f}" rx="6"/>'
    path.write_text("\n".join([head, f"<style>{_STYLE}</style>", page, *parts, "</svg>", ""]))


def _rate_bars(figures: Sequence[Figure]) -> list[Bar]:
    most = max(figure.value for figure in figures) or 1.0
    return [
        Bar(figure.name, figure.value / most, f"{readable(figure.value)}/s", _BLUE)
        for figure in figures
    ]


def _score_bars(figures: Sequence[Figure]) -> list[Bar]:
    bars = []
    for figure in figures:
        judged = figure.judged
        assert judged is not None
        assert figure.score is not None
        unit = f"x {figure.beside}" if figure.ratio == judged else f" {figure.unit}"
        text = f"{readable(judged)}{unit} ({figure.target_text})"
        colour = _GREEN if figure.is_met else _RED
        share = min(figure.score, _SCORE_MAX) / _SCORE_MAX
        bars.append(Bar(f"{figure.work}: {figure.name}", share, text, colour))
    return bars


def _panel(
    title: str, bars: Sequence[Bar], top: float, *, mark: float | None = None
) -> tuple[list[str], float]:
    """Return the elements of a title with bars below it, and where the next panel begins."""
    parts = [f'<text class="title" x="{_MARGIN}" y="{top + 16:.0f}">{escape(title)}</text>']
    first = top + _TITLE - 8
    for index, bar in enumerate(bars):
        parts += _row(bar, first + index * _ROW)
    bottom = first + len(bars) * _ROW
    if mark is not None:
        x = _MARGIN + _LABEL + mark * _BAR
        parts.append(
            f'<path d="M{x:.1f} {first:.0f}V{bottom:.0f}" stroke="#888" stroke-dasharray="3 2"/>'
        )
    return parts, bottom + _MARGIN


def _row(bar: Bar, y: float) -> list[str]:
    left = _MARGIN + _LABEL
    width = max(1.0, bar.share * _BAR)
    base = y + 14
    end = left + width + 6
    return [
        f'<text x="{left - 8}" y="{base:.0f}" text-anchor="end">{escape(bar.label)}</text>',
        f'<rect x="{left}" y="{y + 3:.0f}" width="{width:.1f}" height="{_ROW - 6}"'
        f' fill="{bar.colour}" rx="2"/>',
        f'<text x="{end:.1f}" y="{base:.0f}">{escape(bar.text)}</text>',
    ]
