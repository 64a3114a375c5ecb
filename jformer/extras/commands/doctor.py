"""Show versions, devices and optional packages, and how to get what is missing.

    doctor

It takes no flags.
"""

from jformer.errors import UserError


def main(arguments: list[str]) -> int:
    if arguments:
        raise UserError(f"{arguments[0]!r}: doctor takes no flags")

    from jformer.extras.doctor import findings

    print("\n".join(findings()))
    return 0
