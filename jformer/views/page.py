"""The report as one self-contained HTML page with a table and the learning curves."""

import html
import textwrap
from typing import Any

from jformer.errors import UserError
from jformer.views.report import Row, base_line, table

# Split and name in metrics.jsonl, title of the plot, label of its y axis.
CURVES = (
    ("validation", "nll", "Validation likelihood", "NLL, nats a token"),
    ("validation", "bleu", "Validation BLEU, of the first pairs", "BLEU"),
    ("train", "nll", "Training likelihood", "NLL, nats a token"),
)
LEGEND_WIDTH = 60  # characters; longer labels are shortened
# The page follows the browser's light or dark colour scheme; SCRIPT does so for the plots.
STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --paper: #ffffff; --line: #d5d8dc; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e6e9; --paper: #16181b; --line: #3a3f45; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       margin: 0 auto; max-width: 96rem; padding: 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .6rem; text-align: right; }
th { white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0;
                                 background: var(--paper); white-space: normal;
                                 min-width: 11rem; max-width: 24rem; overflow-wrap: anywhere; }
"""
SCRIPT = """
const dark = matchMedia("(prefers-color-scheme: dark)");
function paint() {
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue("--ink"), line = style.getPropertyValue("--line");
  for (const figure of document.querySelectorAll(".plotly-graph-div")) {
    Plotly.relayout(figure, {
      "font.color": ink, "xaxis.gridcolor": line, "yaxis.gridcolor": line,
      "hoverlabel.bgcolor": style.getPropertyValue("--paper"), "hoverlabel.font.color": ink,
    });
  }
}
dark.addEventListener("change", paint);
paint();
"""


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
<p>{html.escape(base_line(rows))}</p>
{curves(rows)}
<script>{SCRIPT}</script>
</body>
</html>
"""


def curves(rows: list[Row]) -> str:
    """Return the HTML of one plot for each kind of curve that any run has."""
    try:
        from plotly.graph_objects import Figure, Scatter
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise UserError(
            "--output needs the package plotly: pip install 'jformer[report]'"
        ) from error
    parts = [f"<script>{get_plotlyjs()}</script>"]
    for split, name, title, unit in CURVES:
        figure = Figure(layout=layout(title, unit))
        for number, row in enumerate(rows):
            for symbol, run in enumerate(row.runs):
                points: list[Any] = run.curve(split, name)
                if not points:
                    continue
                steps, values = zip(*points, strict=True)
                label = textwrap.shorten(row.label, LEGEND_WIDTH, placeholder=" ...")
                if len(row.runs) > 1:
                    label += f", seed {run.config.seed}"
                figure.add_trace(
                    Scatter(
                        x=steps,
                        y=values,
                        name=label,
                        mode="lines+markers",
                        marker_size=5,
                        marker_symbol=symbol,
                        line_color=COLOURS[number % len(COLOURS)],
                        line_dash="solid" if number < len(COLOURS) else "dash",
                        hovertemplate=f"%{{fullData.name}}<br>step %{{x:,}}: %{{y:.4g}} {unit}"
                        "<extra></extra>",
                    )
                )
        if figure.data:
            parts.append(
                figure.to_html(
                    full_html=False,
                    include_plotlyjs=False,
                    default_height="30rem",
                    config={"responsive": True, "displayModeBar": False},
                )
            )
    return "\n".join(parts)


# Ten colours that differ on white and on black, also for most people with colour blindness.
COLOURS = (
    "#4477aa",
    "#ee6677",
    "#228833",
    "#b8a22e",
    "#66ccee",
    "#aa3377",
    "#999999",
    "#ee7733",
    "#009988",
    "#8a6fd1",
)


def layout(title: str, unit: str) -> dict[str, Any]:
    return {
        "title": title,
        "yaxis_title": unit,
        "xaxis": {"title": "step (updates of the parameters)", "zeroline": False},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "closest",
        "showlegend": True,
        "legend": {"orientation": "h", "y": -0.25},
        "margin": {"l": 60, "r": 20, "t": 50, "b": 40},
    }
