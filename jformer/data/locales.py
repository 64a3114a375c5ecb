"""How English and German word dates, quantities, money, names and lists, after Unicode's CLDR.

The words are in `cldr.json`, which `tests/data/make_cldr.py` generated.
"""

import datetime
import json
from pathlib import Path
from typing import Any

from jformer.errors import UserError

LOCALES = ("de", "en")


class Locale:
    """A locale of `cldr.json`, for the numbers of the corpus: positive and below 1,000."""

    def __init__(self, name: str) -> None:
        stored = json.loads(Path(__file__).with_name("cldr.json").read_text(encoding="utf-8"))
        self.digits: dict[str, int] = stored["digits"]
        self.words: dict[str, Any] = stored["locales"][name]

    def moment(self, kind: str, moment: datetime.datetime, style: str) -> str:
        """Format a `date`, a `time` or a `datetime` by a pattern with CLDR's field letters."""
        month, weekday = moment.month - 1, moment.weekday()
        indices = {"EEEE": weekday, "MMMM": month, "MMM": month, "a": moment.hour // 12}
        names = {field: names[indices[field]] for field, names in self.words["fields"].items()}
        numbers = {
            "y": moment.year,
            "yy": f"{moment.year % 100:02}",
            "M": moment.month,
            "MM": f"{moment.month:02}",
            "d": moment.day,
            "dd": f"{moment.day:02}",
            "h": moment.hour % 12 or 12,
            "HH": f"{moment.hour:02}",
            "mm": f"{moment.minute:02}",
            "ss": f"{moment.second:02}",
        }
        pattern: str = self.words["patterns"][kind][style]
        return pattern.format(**names, **numbers)

    def from_now(self, number: int, unit: str) -> str:
        forms = self.words["from_now"][unit]["future" if number > 0 else "past"]
        return plural(abs(number), forms).format(abs(number))

    def quantity(self, number: float, unit: str) -> str:
        return plural(number, self.words["units"][unit]).format(self.decimal(f"{number:g}"))

    def money(self, number: float, currency: str, style: str) -> str:
        symbol, *forms = self.words["money"][currency]
        name = symbol if style == "standard" else plural(number, forms)
        amount = self.decimal(f"{number:.{self.digits.get(currency, 2)}f}")
        pattern: str = self.words["patterns"]["money"][style]
        return pattern.format(amount, name)

    def decimal(self, number: str) -> str:
        return number.replace(".", self.words["decimal"])

    def both(self, parts: list[str], style: str) -> str:
        pattern: str = self.words["patterns"]["list"][style]
        return pattern.format(*parts)


def plural(number: float, forms: list[str]) -> str:
    """Choose the form for a number by the rule of English and German."""
    one, other = forms
    return one if number == 1 else other


def open_locales(source: str, target: str) -> tuple[Locale, Locale]:
    """Return both locales; `UserError` for another language."""
    for name in (source, target):
        if name not in LOCALES:
            raise UserError(
                f"config.data.name=phrases: requires the languages {' and '.join(LOCALES)}, not "
                f"{name!r}; for other languages, set config.data.name=files"
            )
    return Locale(source), Locale(target)
