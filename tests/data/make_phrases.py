"""Makes the built-in corpus, jformer/data/phrases.tsv.gz: `python -m tests.data.make_phrases`.

It consists of phrases of Unicode's CLDR in English and German: dates, times, durations, quantities,
amounts of money, territories, languages (with or without a territory), and lists of these. A *kind*
draws a value, and both locales word it. Another corpus has other scores.
"""

import collections
import datetime
import gzip
import itertools
import json
import random
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

Render = Callable[["Locale"], str]  # words a value
Names = dict[str, list[str]]  # CLDR's codes of territories, languages, currencies and units

FILE = Path("jformer/data/phrases.tsv.gz")
NAMED = ("territories", "languages", "currencies")  # categories with some names held out
HELD_OUT_SHARE = 0.05
SEED = "0 en de"
PAIRS = 40_000
SPLIT_PAIRS = 1000  # in each of validation, test and test_unseen_names
UNITS_OF_TIME = ("year", "month", "week", "day", "hour", "minute", "second")


class Locale:
    """How a language words values: a locale of `cldr.json`, for positive numbers below 1,000.

    The file is from Unicode's CLDR 49, by way of Babel 2.19.
    """

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


def make_splits() -> dict[str, list[tuple[str, str]]]:
    """Return `{split: pairs of an English and a German phrase}`.

    No English phrase is in two splits. `test` has new combinations of names seen in training. Every
    phrase of `test_unseen_names` has a name that no training phrase has.
    """
    locales = Locale("en"), Locale("de")
    rng = random.Random(SEED)
    common, held_out = split_names(shared_names(*locales), rng)
    mentions_unseen = any_of(names_of(held_out, locales[0]))
    drawn: set[str] = set()

    def draw(names: Names, kinds: list, wanted: int, accept: Callable) -> list[tuple[str, str]]:
        pairs: list[tuple[str, str]] = []
        while len(pairs) < wanted:
            source, target = map(draw_phrase(rng, names, kinds), locales)
            if accept(source) and source not in drawn:
                pairs.append((source, target))
            drawn.add(source)
        return pairs

    unseen = draw(held_out, NAMED_KINDS, SPLIT_PAIRS, mentions_unseen)
    seen = draw(common, KINDS, PAIRS - SPLIT_PAIRS, lambda text: not mentions_unseen(text))
    return {
        "train": seen[2 * SPLIT_PAIRS :],
        "validation": seen[:SPLIT_PAIRS],
        "test": seen[SPLIT_PAIRS : 2 * SPLIT_PAIRS],
        "test_unseen_names": unseen,
    }


def unseen_names() -> list[str]:
    """Return the English names that only `test_unseen_names` has."""
    locales = Locale("en"), Locale("de")
    _, held_out = split_names(shared_names(*locales), random.Random(SEED))
    return names_of(held_out, locales[0])


def any_of(names: list[str]) -> Callable[[str], re.Match | None]:
    """Return a search for any of the names as whole words."""
    return re.compile(rf"(?<!\w)({'|'.join(map(re.escape, names))})(?!\w)").search


def shared_names(source: Locale, target: Locale) -> Names:
    """Return the codes with a name in both locales, except ambiguous names of the source."""
    named = [source.words[sort].values() for sort in ("territories", "languages")]
    uses = collections.Counter(itertools.chain(*named))

    def shared(sort: str) -> list[str]:
        names = source.words[sort]
        both = names.keys() & target.words[sort].keys()
        return sorted(code for code in both if uses[names[code]] <= 1)

    units = sorted(source.words["units"].keys() & target.words["units"].keys())
    return {**{sort: shared(sort) for sort in NAMED}, "units": units}


def split_names(names: Names, rng: random.Random) -> tuple[Names, Names]:
    """Return the names for training and the names held out from it; all units are in both."""
    common, held_out = dict(names), dict(names)
    for sort in NAMED:
        out = set(rng.sample(names[sort], max(3, round(len(names[sort]) * HELD_OUT_SHARE))))
        held_out[sort] = [code for code in names[sort] if code in out]
        common[sort] = [code for code in names[sort] if code not in out]
    return common, held_out


def names_of(names: Names, locale: Locale) -> list[str]:
    return [locale.words[sort][code] for sort in NAMED for code in names[sort]]


def draw_phrase(rng: random.Random, names: Names, kinds: list) -> Render:
    """Return a phrase of a random kind, or a list of two phrases."""
    parts = [rng.choice(kinds)(rng, names) for _ in range(rng.choice((1, 1, 1, 2)))]
    if len(parts) == 1:
        return parts[0]
    style = rng.choice(("standard", "or"))
    return lambda locale: locale.both([part(locale) for part in parts], style)


# Kinds draw the value independently of the locale, so that both sides mean the same.


def draw_moment(rng: random.Random) -> datetime.datetime:
    minutes = rng.randrange(60 * 366 * 24 * 60)
    return datetime.datetime(1990, 1, 1) + datetime.timedelta(minutes=minutes)


def draw_number(rng: random.Random) -> float:
    """Return a number, mostly small and whole, as in real text."""
    return rng.choice((rng.randrange(1, 13), rng.randrange(2, 1000), rng.randrange(10, 100) / 10))


def date(rng: random.Random, names: Names) -> Render:
    # Not medium: in May one locale writes it like long while another does not.
    day, style = draw_moment(rng), rng.choice(("short", "long", "full"))
    return lambda locale: locale.moment("date", day, style)


def time(rng: random.Random, names: Names) -> Render:
    moment, style = draw_moment(rng), rng.choice(("short", "medium"))
    kind = rng.choice(("time", "datetime"))
    return lambda locale: locale.moment(kind, moment, style)


def duration(rng: random.Random, names: Names) -> Render:
    unit, sign, number = rng.choice(UNITS_OF_TIME), rng.choice((-1, 1)), rng.randrange(1, 13)
    return lambda locale: locale.from_now(sign * number, unit)


def quantity(rng: random.Random, names: Names) -> Render:
    number, unit = draw_number(rng), rng.choice(names["units"])
    return lambda locale: locale.quantity(number, unit)


def money(rng: random.Random, names: Names) -> Render:
    number, currency = draw_number(rng), rng.choice(names["currencies"])
    style = rng.choice(("standard", "name"))
    return lambda locale: locale.money(number, currency, style)


def name(sort: str, rng: random.Random, names: Names) -> Render:
    code = rng.choice(names[sort])
    return lambda locale: locale.words[sort][code]


territory, language = partial(name, "territories"), partial(name, "languages")


def language_of_territory(rng: random.Random, names: Names) -> Render:
    """Draw a language with a territory, written like the name of a locale."""
    spoken, where = language(rng, names), territory(rng, names)
    return lambda locale: f"{spoken(locale)} ({where(locale)})"


NAMED_KINDS = [territory, language, language_of_territory, money]
KINDS = [date, time, duration, quantity, *NAMED_KINDS]


def lines() -> Iterator[str]:
    """Yield split, English and German phrase, separated by tabs."""
    for split, pairs in make_splits().items():
        for source, target in pairs:
            yield f"{split}\t{source}\t{target}\n"


if __name__ == "__main__":
    FILE.write_bytes(gzip.compress("".join(lines()).encode(), mtime=0))
