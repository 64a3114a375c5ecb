"""The report as one self-contained HTML page with a table and the learning curves."""

import html
import textwrap
from typing import Any

from jformer.errors import import_extra
from jformer.extras.views.report import Row, notes, table

# Split and name in metrics.jsonl, title of the plot, label of its y axis.
CURVES = (
    ("validation", "nll", "Validation likelihood", "NLL, nats a token"),
    ("validation", "bleu", "Validation BLEU, of the first pairs", "BLEU"),
    ("validation", "f1", "Validation F1, of the first sentences", "F1"),
    ("train", "nll", "Training likelihood", "NLL, nats a token"),
)
LEGEND_WIDTH = 60  # characters; longer labels are shortened
# Ten colours that differ on white and on black, also for most people with colour blindness.
COLOURS = ("#47a", "#e67", "#283", "#b8a22e", "#6ce", "#a37", "#999", "#e73", "#098", "#8a6fd1")
LINE = "rgba(136, 136, 136, 0.4)"  # of the table and the grids: is seen on white and on black
# The page follows the browser's light or dark colour scheme, and so does the text of the plots,
# to which plotly gives one colour.
STYLE = f"""
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 96rem; padding: 1rem; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; }}
th, td {{ border-bottom: 1px solid {LINE}; padding: .25rem .6rem; text-align: right; }}
th {{ white-space: normal; vertical-align: bottom; }}
th:first-child, td:first-child {{ text-align: left; position: sticky; left: 0;
                                 background: Canvas; }}
td:first-child {{ min-width: min(13rem, 45vw); max-width: 24rem; }}
td:first-child, td:nth-child(2), td:last-child {{ white-space: normal; overflow-wrap: anywhere; }}
:is(th, td):is(:nth-child(2), :last-child) {{ text-align: left; }}
td:nth-child(2) {{ min-width: 9rem; max-width: 20rem; }}
td:last-child {{ min-width: 18rem; font-size: .85em;
                color: color-mix(in srgb, CanvasText 65%, Canvas); }}
p {{ overflow-wrap: anywhere; }}
.js-plotly-plot text:not(.hoverlayer *) {{ fill: CanvasText !important; }}
"""
LAYOUT = {
    "xaxis": {"title": "step (updates of the parameters)", "zeroline": False, "gridcolor": LINE},
    "yaxis": {"gridcolor": LINE},
    "paper_bgcolor": "rgba(0, 0, 0, 0)",
    "plot_bgcolor": "rgba(0, 0, 0, 0)",
    "showlegend": True,
    "legend": {"orientation": "h", "y": -0.25},
    "margin": {"l": 60, "r": 20, "t": 50, "b": 40},
}


def page(rows: list[Row]) -> str:
    heading, *lines = table(rows)
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in heading)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>\n"
        for cells in lines
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>jformer: {len(lines)} rows</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
</head>
<body>
<h1>Runs side by side</h1>
<div class="wide"><table><thead><tr>{head}</tr></thead>
<tbody>
{body}</tbody></table></div>
{"".join(f"<p>{html.escape(note)}</p>" for note in notes(rows))}
{curves(rows)}
</body>
</html>
"""


def curves(rows: list[Row]) -> str:
    """Return the HTML of one plot for each kind of curve that any run has."""
    plotly = import_extra("plotly.graph_objects", "--output", "plotly")
    parts: list[str] = []
    for split, name, title, unit in CURVES:
        figure = plotly.Figure(
            lines(rows, split, name), {**LAYOUT, "title": title, "yaxis_title": unit}
        )
        figure.update_traces(
            mode="lines+markers",
            marker_size=5,
            hovertemplate=f"%{{fullData.name}}<br>step %{{x:,}}: %{{y:.4g}} {unit}<extra></extra>",
        )
        if figure.data:
            part = figure.to_html(
                full_html=False,
                include_plotlyjs=not parts,  # with the first plot, for all of them
                default_height="30rem",
                config={"responsive": True, "displayModeBar": False},
            )
            parts.append(part)
    return "\n".join(parts)


def lines(rows: list[Row], split: str, name: str) -> list[dict[str, Any]]:
    """Return the curves for plotly: a colour per row, a symbol per run of a row."""
    found = []
    for number, row in enumerate(rows):
        label = textwrap.shorten(row.label, LEGEND_WIDTH, placeholder=" ...")
        for symbol, run in enumerate(row.runs):
            if not (points := run.curve(split, name)):
                continue
            line = {
                "x": [step for step, _ in points],
                "y": [value for _, value in points],
                "name": f"{label}, seed {run.config.seed}" if len(row.runs) > 1 else label,
                "marker_symbol": symbol,
                "line_color": COLOURS[number % len(COLOURS)],
                "line_dash": "solid" if number < len(COLOURS) else "dash",
            }
            found.append(line)
    return found
