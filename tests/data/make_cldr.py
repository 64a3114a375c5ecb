"""Makes cldr.json, for make_phrases.py, from the installed Babel: `python -m tests.data.make_cldr`.

The stored file is from Babel 2.19. Another version makes another corpus, and other scores.
"""

import datetime
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import babel
import babel.dates
import babel.numbers
import babel.units

from tests.data.make_phrases import UNITS_OF_TIME

FILE = Path(__file__).with_name("cldr.json")
SOURCE = "Unicode CLDR 49, with plain spaces for no-break and thin ones"  # the CLDR of Babel 2.19


# When a currency must be in use; without a date Babel takes today's.
IN_USE = datetime.date(2026, 7, 1)


def stored() -> str:
    """Return the text of the file."""
    licence = Path(babel.__file__).parent / "locale-data" / "LICENSE.unicode"
    words = {name: words_of(babel.Locale.parse(name)) for name in ("en", "de")}
    digits = {c: babel.numbers.get_currency_precision(c) for c in words["en"]["currencies"]}
    about = {
        "babel": babel.__version__,
        "source": SOURCE,
        "license": licence.read_text(encoding="utf-8").strip().splitlines(),
    }
    content = {
        "about": about,
        "digits": {currency: number for currency, number in digits.items() if number != 2},
        "locales": words,
    }
    text = json.dumps(content, ensure_ascii=False, indent=1, sort_keys=True)
    text = re.sub("[\u00a0\u202f\u2009]", " ", text)  # plain spaces, which is what people type
    return re.sub(r'\[(\n +".*",?){1,3}\n +\]', one_line, text) + "\n"


def one_line(short_list: re.Match) -> str:
    return json.dumps(json.loads(short_list[0]), ensure_ascii=False)


def words_of(locale: babel.Locale) -> dict[str, Any]:
    territories = {c: name for c, name in locale.territories.items() if re.fullmatch("[A-Z]{2}", c)}
    in_use = {
        currency
        for territory in locale.territories
        for currency in babel.numbers.get_territory_currencies(territory, IN_USE)
    }
    currencies = {c: name for c, name in locale.currencies.items() if c in in_use}
    # Babel words a unit by CLDR's code if the locale has no word for it.
    units = [
        unit
        for unit in locale.unit_display_names
        if unit not in babel.units.format_unit(2, unit, "long", locale=locale)
    ]
    named = set(territories.values())  # a name that is a language's too is ambiguous
    languages = {c: n for c, n in locale.languages.items() if len(c) == 2 or n in named}
    patterns = patterns_of(locale)
    days = babel.dates.get_day_names(locale=locale)
    months = babel.dates.get_month_names
    periods = babel.dates.get_period_names("abbreviated", "format", locale)
    fields = {
        "EEEE": [days[day] for day in range(7)],
        "MMMM": [months("wide", locale=locale)[month] for month in range(1, 13)],
        "MMM": [months("abbreviated", locale=locale)[month] for month in range(1, 13)],
        "a": [periods[period] for period in ("am", "pm")],
    }
    return {
        "territories": territories,
        "languages": languages,
        "currencies": currencies,
        "money": {c: forms_of_currency(c, locale) for c in currencies},
        "units": {u: forms(locale._data["unit_patterns"][u]["long"]) for u in units},
        "from_now": {
            unit: {way: forms(locale._data["date_fields"][unit][way]) for way in ("past", "future")}
            for unit in UNITS_OF_TIME
        },
        "fields": {f: names for f, names in fields.items() if f"{{{f}}}" in str(patterns)},
        "patterns": patterns,
        "decimal": babel.numbers.get_decimal_symbol(locale),
    }


def patterns_of(locale: babel.Locale) -> dict[str, dict[str, str]]:
    """Return templates of `str.format`."""

    def template(pattern: babel.dates.DateTimePattern) -> str:
        return re.sub(r"%\((\w+)\)s", r"{\1}", pattern.format)

    date = {style: template(pattern) for style, pattern in locale.date_formats.items()}
    time = {style: template(locale.time_formats[style]) for style in ("short", "medium")}
    joined = {style: str(locale.datetime_formats[style]) for style in time}
    both = {s: p.replace("{0}", time[s]).replace("{1}", date[s]) for s, p in joined.items()}
    amount = locale.currency_formats["standard"]
    return {
        "date": {style: date[style] for style in ("short", "long", "full")},
        "time": time,
        "datetime": both,
        "list": {style: locale.list_patterns[style]["2"] for style in ("standard", "or")},
        "money": {
            "standard": (amount.prefix[0] + "{0}" + amount.suffix[0]).replace("¤", "{1}"),
            "name": babel.numbers.get_currency_unit_pattern("EUR", 2, locale),
        },
    }


def forms_of_currency(currency: str, locale: babel.Locale) -> list[str]:
    names = (babel.numbers.get_currency_name(currency, number, locale) for number in (1, 2))
    return [babel.numbers.get_currency_symbol(currency, locale), *names]


def forms(patterns: Mapping[str, str]) -> list[str]:
    """Return a pattern's singular and plural; without a singular, the plural serves for both."""
    return [patterns.get("one") or patterns["other"], patterns["other"]]


if __name__ == "__main__":
    FILE.write_text(stored(), encoding="utf-8")
