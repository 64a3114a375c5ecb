"""Table 3 of the paper: variations on the base model, scored on newstest2013."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class PaperRow:
    name: str
    changes: Mapping[str, Any]
    perplexity: float  # per wordpiece, on the development set
    bleu: float
    millions: int | None = None  # of parameters, if the table prints the number


BIG = {
    "model.d_model": 1024,
    "model.d_ff": 4096,
    "model.num_heads": 16,
    "model.dropout": 0.3,
    "train.steps": 300_000,
}
TABLE_3 = (
    PaperRow("base", {}, 4.92, 25.8, 65),
    PaperRow("A1", {"model.num_heads": 1}, 5.29, 24.9),
    PaperRow("A4", {"model.num_heads": 4}, 5.00, 25.5),
    PaperRow("A16", {"model.num_heads": 16}, 4.91, 25.8),
    PaperRow("A32", {"model.num_heads": 32}, 5.01, 25.4),
    PaperRow("B16", {"model.d_k": 16}, 5.16, 25.1, 58),
    PaperRow("B32", {"model.d_k": 32}, 5.01, 25.4, 60),
    PaperRow("CN2", {"model.num_layers": 2}, 6.11, 23.7, 36),
    PaperRow("CN4", {"model.num_layers": 4}, 5.19, 25.3, 50),
    PaperRow("CN8", {"model.num_layers": 8}, 4.88, 25.5, 80),
    PaperRow("Cd256", {"model.d_model": 256}, 5.75, 24.5, 28),
    PaperRow("Cd1024", {"model.d_model": 1024}, 4.66, 26.0, 168),
    PaperRow("Cff1024", {"model.d_ff": 1024}, 5.12, 25.4, 53),
    PaperRow("Cff4096", {"model.d_ff": 4096}, 4.75, 26.2, 90),
    PaperRow("Ddrop00", {"model.dropout": 0.0}, 5.77, 24.6),
    PaperRow("Ddrop02", {"model.dropout": 0.2}, 4.95, 25.5),
    PaperRow("Dls00", {"train.label_smoothing": 0.0}, 4.67, 25.3),
    PaperRow("Dls02", {"train.label_smoothing": 0.2}, 5.47, 25.7),
    PaperRow("E", {"model.positions": "learned"}, 4.92, 25.7),
    PaperRow("big", BIG, 4.33, 26.4, 213),
)
