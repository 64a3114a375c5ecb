"""Show versions, devices and optional packages, and how to install missing packages."""

from typing import Any

from jformer import cli


def add_flags(parser: cli.Parser) -> None:
    """Declare no flags."""


def main(args: Any) -> int:
    from jformer.extras.doctor import findings

    print("\n".join(findings()))
    return 0
