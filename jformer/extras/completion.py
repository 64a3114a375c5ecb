"""Print a script that completes commands, flags and config keys in a shell.

    eval "$(jformer completion bash)"

Put this line into .bashrc or, with zsh, into .zshrc.
"""

from typing import Any

from jformer import cli


def add_flags(parser: cli.Parser) -> None:
    parser.add_argument(
        "shell", metavar="SHELL", choices=("bash", "zsh", "tcsh"), help="bash, zsh or tcsh"
    )


def main(args: Any) -> int:
    import shtab

    root = cli.parser_of("train", args.commands, cli.Parser(prog="jformer"))
    commands = root.add_subparsers()
    for name in args.commands:
        cli.parser_of(name, args.commands, commands.add_parser(name, help=name))
    for parser in (root, *commands.choices.values()):
        for action in parser._actions:
            if action.type in (cli.path, cli.paths):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(root, args.shell))
    return 0
