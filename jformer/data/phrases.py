"""The built-in corpus: phrases of Unicode's CLDR in English and German.

It consists of dates, times, durations, quantities, amounts of money, territories, languages (with
or without a territory), and lists of these. A *kind* draws a value, and both locales word it. The
corpus needs no network: it is a function of the seed, the number of pairs and the languages.

Scores on it show whether a Transformer trains and decodes, not how well it would translate text.
"""

import collections
import datetime
import itertools
import json
import random
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from jformer.errors import UserError

Render = Callable[["Locale"], str]  # words a value
Names = dict[str, list[str]]  # CLDR's codes of territories, languages, currencies and units

NAMED = ("territories", "languages", "currencies")  # categories with some names held out
HELD_OUT_SHARE = 0.05
SPLIT_PAIRS = 1000  # in each of validation, test and test_unseen_names, at most
LOCALES = ("de", "en")
UNITS_OF_TIME = ("year", "month", "week", "day", "hour", "minute", "second")


class Locale:
    """How a language words values: a locale of `cldr.json`, for positive numbers below 1,000.

    `tests/data/make_cldr.py` generated the file from Unicode's CLDR.
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


def open_locales(source: str, target: str) -> tuple[Locale, Locale]:
    """Return both locales; `UserError` for another language."""
    for name in (source, target):
        if name not in LOCALES:
            raise UserError(
                f"config.data.name=phrases: requires the languages {' and '.join(LOCALES)}, not "
                f"{name!r}; for other languages, set config.data.name=files"
            )
    return Locale(source), Locale(target)


def make_splits(
    source: str, target: str, number: int, seed: int
) -> dict[str, tuple[list[str], list[str]]]:
    """Return `{split: (source phrases, target phrases)}` with about `number` pairs in total.

    No source phrase is in two splits. `test` has new combinations of names seen in training. Every
    phrase of `test_unseen_names` has a name that no training phrase has.
    """
    locales = open_locales(source, target)
    rng = random.Random(f"{seed} {source} {target}")
    common, held_out = split_names(shared_names(*locales), rng)
    unseen_names = "|".join(map(re.escape, names_of(held_out, locales[0])))
    mentions_unseen = re.compile(rf"(?<!\w)({unseen_names})(?!\w)").search
    targets_of: dict[str, str] = {}
    ambiguous = set()

    def draw(names: Names, kinds: list, wanted: int, accept: Callable) -> list[str]:
        drawn: list[str] = []
        # Bounded, because small inventories run out of new phrases.
        for _ in range(4 * wanted):
            phrase = draw_phrase(rng, names, kinds)
            source_text, target_text = map(phrase, locales)
            if accept(source_text) and source_text not in targets_of:
                drawn.append(source_text)
            if targets_of.setdefault(source_text, target_text) != target_text:
                ambiguous.add(source_text)  # such as "5/6", which has several targets
            if len(drawn) == wanted:
                break
        return drawn

    held = min(SPLIT_PAIRS, number // 20)
    unseen = draw(held_out, NAMED_KINDS, held, mentions_unseen)
    seen = draw(common, KINDS, number - held, lambda text: not mentions_unseen(text))
    splits = {
        "validation": seen[:held],
        "test": seen[held : 2 * held],
        "train": seen[2 * held :],
        "test_unseen_names": unseen,
    }
    clear = {name: [s for s in texts if s not in ambiguous] for name, texts in splits.items()}
    return {name: (texts, [targets_of[s] for s in texts]) for name, texts in clear.items()}


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
