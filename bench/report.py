"""What was measured, for people and for programs: a table, a JSON file and a chart.

Owns the presentation. The figure that counts is a ratio within one round; its median and its spread are shown.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median


@dataclass
class Line:
    """One workload: a figure per side and round."""

    name: str
    unit: str
    sides: dict[str, list[float]] = field(default_factory=dict)

    def add(self, side: str, figure: float) -> None:
        self.sides.setdefault(side, []).append(figure)

    def ratios(self, side: str, base: str) -> list[float]:
        """Of the rounds, in order of size."""
        return sorted(a / b for a, b in zip(self.sides[side], self.sides[base], strict=True))

    def differences(self, side: str, base: str) -> list[float]:
        """Of the rounds, in order of size."""
        return sorted(a - b for a, b in zip(self.sides[side], self.sides[base], strict=True))


def print_line(line: Line) -> None:
    figures = "  ".join(f"{side} {median(values):9.0f}" for side, values in line.sides.items())
    ratios = [
        f"PlainSQL/{base} {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        for base in line.sides
        if base != "PlainSQL"
        for ratios in [line.ratios("PlainSQL", base)]
    ]
    print(f"{line.name:28} {line.unit:4} {figures}   {'  '.join(ratios)}", flush=True)


def write(lines: list[Line], folder: Path) -> None:
    """Writes bench.json and bench.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    content = [{"name": line.name, "unit": line.unit, "sides": line.sides} for line in lines]
    (folder / "bench.json").write_text(json.dumps(content, indent=2) + "\n")
    (folder / "bench.svg").write_text(_chart([line for line in lines if line.unit == "1/s"]))


def _chart(lines: list[Line]) -> str:
    colours = {"engine": "#9aa5b1", "psycopg": "#9aa5b1", "PlainSQL": "#2f6fdb", "rqlite": "#d9822b"}
    parts, y = [], 30
    for line in lines:
        widest = max(median(values) for values in line.sides.values())
        parts.append(f'<text x="10" y="{y}" font-weight="bold">{line.name}</text>')
        for side, values in line.sides.items():
            y += 22
            width = 360 * median(values) / widest
            parts.append(f'<text x="20" y="{y}">{side}</text>')
            parts.append(f'<rect x="110" y="{y - 12}" width="{width:.0f}" height="15" fill="{colours[side]}"/>')
            parts.append(f'<text x="{118 + width:.0f}" y="{y}">{median(values):,.0f}/s</text>')
        y += 34
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="600" height="{y}" font-family="sans-serif" font-size="13">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>"]) + "\n"
