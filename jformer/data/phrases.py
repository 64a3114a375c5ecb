"""The embedded corpus: phrases that Unicode's CLDR knows in every locale, rendered through Babel.

Dates, times, intervals, durations, quantities, rates, amounts of money, lists, languages with
their territory, time zones, and lists of all these. No sentence is typed in here: a *kind* draws
what is to be said, and CLDR says it in both locales. So the corpus needs no network, exists for any
two locales, and is a function of the seed.

Scores on it say whether a Transformer trains and decodes, not how well it would translate text.
"""

import collections
import dataclasses
import datetime
import random
import re
from collections.abc import Callable

import babel
import babel.core
import babel.dates
import babel.lists
import babel.numbers
import babel.units

from jformer.config import UserError

Render = Callable[[babel.Locale], str]

LISTED = 3  # phrases in a list, at most
HELD_OUT_SHARE = 0.05  # of the names of each sort
SPLIT_PAIRS = 1000  # in each of validation, test and test_unseen_names, at most


@dataclasses.dataclass(frozen=True)
class Names:
    """Codes of things that both locales have a name for."""

    territories: list[str]
    languages: list[str]
    currencies: list[str]
    zones: list[str]  # time zones of a territory that has no other
    units: list[str]
    rates: list[tuple[str, str]]  # kilometers per hour, ...


def make_splits(
    source: str, target: str, number: int, seed: int
) -> dict[str, tuple[list[str], list[str]]]:
    """`{split: (source phrases, target phrases)}` with about `number` pairs in all.

    No source phrase stands in two splits. `test` holds new combinations of names that training
    has; every phrase of `test_unseen_names` has a name that no training phrase has.
    """
    locales = parse_locale(source), parse_locale(target)
    rng = random.Random(f"{seed} {source} {target}")
    common, held_out = split_names(shared_names(*locales), rng)
    unseen_names = [name_of(code, locales[0]) for code in codes(held_out)]
    mentions_unseen = re.compile(
        r"(?<!\w)(" + "|".join(re.escape(tidy(name)) for name in unseen_names) + r")(?!\w)"
    ).search

    pairs: dict[str, str] = {}
    ambiguous = set()

    def draw_pairs(names: Names, kinds: list, wanted: int, accept) -> list[tuple[str, str]]:
        drawn = {}
        # Small inventories run out of new phrases; a fixed number of draws always ends.
        for _ in range(4 * wanted):
            if len(drawn) == wanted:
                break
            phrase = draw_phrase(rng, names, kinds)
            rendered = [tidy(phrase(locale)) for locale in locales]
            if accept(rendered[0]) and rendered[0] not in pairs:
                drawn[rendered[0]] = pairs[rendered[0]] = rendered[1]
            elif pairs.get(rendered[0], rendered[1]) != rendered[1]:
                ambiguous.add(rendered[0])  # "05/06" says less than the locales differ in
        return list(drawn.items())

    unseen = draw_pairs(held_out, NAMED_KINDS, min(SPLIT_PAIRS, number // 20), mentions_unseen)
    seen = draw_pairs(common, KINDS, number - len(unseen), lambda text: not mentions_unseen(text))
    held = min(SPLIT_PAIRS, number // 20)
    splits = {
        "validation": seen[:held],
        "test": seen[held : 2 * held],
        "train": seen[2 * held :],
        "test_unseen_names": unseen,
    }
    return {
        split: (
            [text for text, _ in rows if text not in ambiguous],
            [text for source_text, text in rows if source_text not in ambiguous],
        )
        for split, rows in splits.items()
    }


def parse_locale(name: str) -> babel.Locale:
    try:
        return babel.Locale.parse(name, sep="-" if "-" in name else "_")
    except (babel.UnknownLocaleError, ValueError) as error:
        raise UserError(
            f"CLDR has no locale {name!r}: set config.data.source_language and "
            f"config.data.target_language to codes such as en, de or pt_BR ({error})"
        ) from error


def tidy(text: str) -> str:
    """No-break and thin spaces become plain ones: nobody types them, and scores would count them."""
    return re.sub("[\u00a0\u202f\u2009]", " ", text)


def shared_names(source: babel.Locale, target: babel.Locale) -> Names:
    territories = unambiguous("territories", "[A-Z]{2}", source, target)
    in_use = {c for t in territories for c in babel.numbers.get_territory_currencies(t)}
    zones: dict[str, list[str]] = {}
    for zone, territory in babel.core.get_global("zone_territories").items():
        zones.setdefault(territory, []).append(zone)
    units = [
        unit
        for unit in sorted(source.unit_display_names.keys() & target.unit_display_names.keys())
        if all(says_unit(unit, None, locale) for locale in (source, target))
    ]
    return Names(
        territories=territories,
        languages=unambiguous("languages", "[a-z]{2}", source, target),
        currencies=[c for c in unambiguous("currencies", "[A-Z]{3}", source, target) if c in in_use],
        zones=sorted(zones[t][0] for t in territories if len(zones.get(t, ())) == 1),
        units=units,
        rates=[
            (unit, per)
            for unit in units
            for per in ("duration-second", "duration-minute", "duration-hour", "duration-day")
            if unit != per and all(says_unit(unit, per, locale) for locale in (source, target))
        ],
    )


def unambiguous(attribute: str, pattern: str, source: babel.Locale, target: babel.Locale) -> list:
    """Codes that both locales name, and the source no two things alike: Nauru, Nauru (language)."""
    both = [
        code
        for code in getattr(source, attribute).keys() & getattr(target, attribute).keys()
        if re.fullmatch(pattern, code)
    ]
    uses = collections.Counter(
        name for every in (source.territories, source.languages) for name in every.values()
    )
    return sorted(code for code in both if uses[getattr(source, attribute)[code]] <= 1)


def says_unit(unit: str, per: str | None, locale: babel.Locale) -> bool:
    """Whether the locale has words for it; Babel falls back to CLDR's code or to nothing."""
    if per is None:
        text = babel.units.format_unit(2, unit, "long", locale=locale)
    else:
        text = babel.units.format_compound_unit(2, unit, denominator_unit=per, locale=locale)
    return text is not None and unit not in text and (per is None or per not in text)


def split_names(names: Names, rng: random.Random) -> tuple[Names, Names]:
    """The names for training, and the few that it must not see. Units are in both."""
    common, held_out = {}, {}
    for field in ("territories", "languages", "currencies"):
        every = getattr(names, field)
        out = set(rng.sample(every, max(3, round(len(every) * HELD_OUT_SHARE))))
        held_out[field] = [code for code in every if code in out]
        common[field] = [code for code in every if code not in out]
    territory_of = babel.core.get_global("zone_territories")
    held_out["zones"] = [z for z in names.zones if territory_of[z] in held_out["territories"]]
    common["zones"] = [z for z in names.zones if territory_of[z] in common["territories"]]
    return dataclasses.replace(names, **common), dataclasses.replace(names, **held_out)


def codes(names: Names) -> list[str]:
    return names.territories + names.languages + names.currencies


def name_of(code: str, locale: babel.Locale) -> str:
    sorts = {2: locale.territories if code.isupper() else locale.languages, 3: locale.currencies}
    return sorts[len(code)][code]


def draw_phrase(rng: random.Random, names: Names, kinds: list) -> Render:
    """One phrase of any kind, or a list of two or three."""
    parts = [rng.choice(kinds)(rng, names) for _ in range(rng.choice((1, 1, 2, LISTED)))]
    if len(parts) == 1:
        return parts[0]
    return listed(rng, parts)


def listed(rng: random.Random, parts: list[Render]) -> Render:
    style = rng.choice(("standard", "or"))
    return lambda locale: babel.lists.format_list([part(locale) for part in parts], style, locale)


# Kinds: what to say is drawn before the locale is known, so both sides say the same.


def draw_day(rng: random.Random) -> datetime.datetime:
    minutes = rng.randrange(366 * 24 * 60 * 60)
    return datetime.datetime(1990, 1, 1) + datetime.timedelta(minutes=minutes)


def draw_number(rng: random.Random) -> float:
    """Small and whole most of the time, as numbers in text are."""
    return rng.choice((rng.randrange(1, 13), rng.randrange(2, 1000), rng.randrange(10, 100) / 10))


def date(rng: random.Random, names: Names) -> Render:
    day, style = draw_day(rng), rng.choice(("short", "medium", "long", "full"))
    return lambda locale: babel.dates.format_date(day, style, locale)


def clock(rng: random.Random, names: Names) -> Render:
    moment, style = draw_day(rng), rng.choice(("short", "medium"))
    return lambda locale: babel.dates.format_time(moment, style, locale=locale)


def moment(rng: random.Random, names: Names) -> Render:
    day, style = draw_day(rng), rng.choice(("short", "medium"))
    return lambda locale: babel.dates.format_datetime(day, style, locale=locale)


def interval(rng: random.Random, names: Names) -> Render:
    start, skeleton = draw_day(rng), rng.choice(("yMMMd", "MMMd", "yMMMEd"))
    end = start + datetime.timedelta(days=rng.randrange(1, 60))
    return lambda locale: babel.dates.format_interval(start, end, skeleton, locale=locale)


def duration(rng: random.Random, names: Names) -> Render:
    unit = rng.choice(("second", "minute", "hour", "day", "week", "month", "year"))
    seconds = dict(babel.dates.TIMEDELTA_UNITS)[unit] * rng.randrange(1, 13)
    delta = datetime.timedelta(seconds=rng.choice((-1, 1)) * seconds)
    return lambda locale: babel.dates.format_timedelta(
        delta, unit, threshold=99, add_direction=True, locale=locale
    )


def quantity(rng: random.Random, names: Names) -> Render:
    number, unit = draw_number(rng), rng.choice(names.units)
    return lambda locale: babel.units.format_unit(number, unit, "long", locale=locale)


def rate(rng: random.Random, names: Names) -> Render:
    number, (unit, per) = draw_number(rng), rng.choice(names.rates)
    return lambda locale: babel.units.format_compound_unit(
        number, unit, denominator_unit=per, length="long", locale=locale
    )


def money(rng: random.Random, names: Names) -> Render:
    number, currency = draw_number(rng), rng.choice(names.currencies)
    style = rng.choice(("name", "name", "standard"))
    return lambda locale: babel.numbers.format_currency(
        number, currency, locale=locale, format_type=style
    )


def territory(rng: random.Random, names: Names) -> Render:
    code = rng.choice(names.territories)
    return lambda locale: locale.territories[code]


def language(rng: random.Random, names: Names) -> Render:
    code = rng.choice(names.languages)
    return lambda locale: locale.languages[code]


def language_of_territory(rng: random.Random, names: Names) -> Render:
    """As Babel writes the name of a locale."""
    spoken, where = rng.choice(names.languages), rng.choice(names.territories)
    return lambda locale: f"{locale.languages[spoken]} ({locale.territories[where]})"


def zone_time(rng: random.Random, names: Names) -> Render:
    zone = rng.choice(names.zones or ["UTC"])
    return lambda locale: babel.dates.get_timezone_location(zone, locale=locale)


def named_currency(rng: random.Random, names: Names) -> Render:
    number, currency = rng.randrange(1, 1000), rng.choice(names.currencies)
    return lambda locale: babel.numbers.format_currency(
        number, currency, locale=locale, format_type="name"
    )


NAMED_KINDS = [territory, language, language_of_territory, zone_time, named_currency]
KINDS = [
    date, clock, moment, interval, duration, quantity, rate, money, *NAMED_KINDS
]  # fmt: skip
