"""Show the attention of a run for one pair of sentences, on a page for the browser.

Without --target, shows and prints the run's translation. For an ensemble, shows the first run.
"""

from pathlib import Path
from typing import Any

from jformer import cli
from jformer.errors import UserError
from jformer.files import check_output


def add_flags(parser: cli.Parser) -> None:
    add, text = parser.add_argument, "the target sentence (default: the run's translation)"
    add("--source", required=True, metavar="TEXT", help="the source sentence")
    add("--target", default="", metavar="TEXT", help=text)
    parser.add_path("--output", "FILE", "page to write, such as attention.html", required=True)
    cli.add_run_flags(parser)


def main(args: Any) -> int:
    config = cli.config_of(args)
    check_output(args.output)
    check_utf8("source", args.source)
    check_utf8("target", args.target)

    from jformer.extras.attention_page import page

    run = cli.open_run(args, config)
    target = args.target or run.translate([args.source])[0]
    attention = run.attention(args.source, target)
    about = {"run": f"{run.workdir}, step {run.step:,}", "source": args.source}
    about["target" if args.target else "translation"] = target
    Path(args.output).write_text(page(attention, about), encoding="utf-8")
    if not args.target:
        print(target)
    return 0


def check_utf8(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"--{name}: character {error.start + 1} is not UTF-8") from error
