"""Where a text can be taken apart."""

import re

# After a mark, or a mark and what closes a quotation; the full-width marks need no space.
CLOSING = "\"'\u201d\u2019\u00bb)\\]"
END = re.compile(
    rf"(?<=[.!?\u2026])\s+|(?<=[.!?\u2026][{CLOSING}])\s+|(?<=[\u3002\uff01\uff1f])\s*"
)


def split(text: str) -> list[str]:
    """The sentences of a text, by their marks alone: "e.g. this" comes apart, too."""
    return [sentence for sentence in END.split(text) if sentence.strip()]
