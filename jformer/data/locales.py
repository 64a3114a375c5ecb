"""How two locales word dates, quantities, money, names and lists, after Unicode's CLDR.

English and German come from `cldr.json`, so that their text is the same with any version of Babel.
`tests/data/make_cldr.py` made that file. Any other locale comes from the installed Babel.
"""

import datetime
import functools
import json
from pathlib import Path
from typing import Any

from jformer.errors import UserError

STORED = ("de", "en")
# When a currency must be in use; without a date Babel takes today's.
IN_USE = datetime.date(2026, 7, 1)


class StoredLocale:
    """A locale of `cldr.json`, for the numbers of the corpus: positive and below 1,000."""

    def __init__(self, name: str) -> None:
        stored = read_cldr()
        self.name = name
        self.digits: dict[str, int] = stored["digits"]
        self.words: dict[str, Any] = stored["locales"][name]
        self.territories: dict[str, str] = self.words["territories"]
        self.languages: dict[str, str] = self.words["languages"]
        self.currencies: dict[str, str] = self.words["currencies"]
        self.units: dict[str, list[str]] = self.words["units"]

    def moment(self, kind: str, moment: datetime.datetime, style: str) -> str:
        """Word a `date`, a `time` or a `datetime`: a pattern, whose fields have CLDR's letters."""
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
        return plural(number, self.units[unit]).format(self.decimal(f"{number:g}"))

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


@functools.cache
def read_cldr() -> dict[str, Any]:
    text = Path(__file__).with_name("cldr.json").read_text(encoding="utf-8")
    stored: dict[str, Any] = json.loads(text)
    return stored


class BabelLocale:
    """A locale of the installed Babel, with the methods of `StoredLocale`."""

    def __init__(self, name: str) -> None:
        import babel  # here, because the stored locales need no Babel
        import babel.dates
        import babel.lists
        import babel.numbers
        import babel.units

        try:
            self.locale = babel.Locale.parse(name.replace("-", "_"))
        except (babel.UnknownLocaleError, ValueError) as error:
            raise UserError(
                f"CLDR has no locale {name!r}: set config.data.source_language and "
                f"config.data.target_language to codes such as en, de or pt_BR ({error})"
            ) from error
        self.name = name
        self.babel: Any = babel
        self.territories: dict[str, str] = dict(self.locale.territories)
        self.languages: dict[str, str] = dict(self.locale.languages)
        in_use = {
            currency
            for territory in self.territories
            for currency in babel.numbers.get_territory_currencies(territory, IN_USE)
        }
        currencies: dict[str, str] = dict(self.locale.currencies)
        self.currencies = {c: name for c, name in currencies.items() if c in in_use}
        units: list[str] = [*self.locale.unit_display_names]
        # Babel words a unit by CLDR's code if the locale has no word for it.
        self.units = {unit for unit in units if unit not in self.quantity(2, unit)}

    def moment(self, kind: str, moment: datetime.datetime, style: str) -> str:
        word = getattr(self.babel.dates, f"format_{kind}")
        return word(moment, style, locale=self.locale)

    def from_now(self, number: int, unit: str) -> str:
        seconds = number * dict(self.babel.dates.TIMEDELTA_UNITS)[unit]
        # A threshold that no number reaches, so that the unit stays the one that was drawn.
        return self.babel.dates.format_timedelta(
            seconds, unit, threshold=99, add_direction=True, locale=self.locale
        )

    def quantity(self, number: float, unit: str) -> str:
        return self.babel.units.format_unit(number, unit, "long", locale=self.locale)

    def money(self, number: float, currency: str, style: str) -> str:
        return self.babel.numbers.format_currency(
            number, currency, format_type=style, locale=self.locale
        )

    def both(self, parts: list[str], style: str) -> str:
        return self.babel.lists.format_list(parts, style, self.locale)


Locale = StoredLocale | BabelLocale


def open_locales(source: str, target: str) -> tuple[Locale, Locale]:
    """Return both locales from one version of CLDR: stored if both are, else Babel's."""
    if {source, target} <= {*STORED}:
        return StoredLocale(source), StoredLocale(target)
    return BabelLocale(source), BabelLocale(target)
