"""Show the attention of a run for one pair of sentences, on a page for the browser.

    attention --workdir=DIR --source=TEXT [--target=TEXT] --output=attention.html [MODEL]

Without --target it is the attention of the run's own translation, which is printed. Of an ensemble
the first run's attention is shown.
"""

from jformer.command_line import REQUIRED, parse
from jformer.commands.model_flags import OF_MODEL, open_run
from jformer.errors import UserError
from jformer.files import check_writable, write_file


def main(arguments: list[str]) -> int:
    known = {"workdir": REQUIRED, "source": REQUIRED, "target": "", "output": REQUIRED, **OF_MODEL}
    flag, config = parse(arguments, known, of_run=True)
    check_writable("output", flag.output)
    check_utf8("source", flag.source)
    check_utf8("target", flag.target)

    from jformer.extras.views.attention_page import page

    run = open_run(flag, config)
    target = flag.target or run.translate([flag.source])[0]
    attention = run.attention(flag.source, target)
    about = {"run": f"{run.workdir}, step {run.step:,}", "source": flag.source}
    about["target" if flag.target else "translation"] = target
    write_file("output", flag.output, page(attention, about).encode())
    if not flag.target:
        print(target)
    return 0


def check_utf8(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"--{name}: character {error.start + 1} is not UTF-8") from error
