"""Compare runs side by side, also while they are going on.

    report DIR... [--output=report.html]

DIR is a run or a folder of runs. Has a row for what makes each differ, with scores, parameters,
FLOPs and time; --output is a page with the table and the learning curves.
"""

from jformer.command_line import flags_and_folders
from jformer.errors import UserError
from jformer.files import check_writable, write_file


def main(arguments: list[str]) -> int:
    flag, folders = flags_and_folders(arguments, {"output": ""})
    if flag.output:
        check_writable("output", flag.output)

    from jformer.extras.views.page import page
    from jformer.extras.views.report import find_runs, markdown, read_rows

    rows = read_rows(find_runs(folders))
    if not rows:
        raise UserError("none of the runs can be read")
    if flag.output:
        write_file("output", flag.output, page(rows).encode())
    print(markdown(rows))
    return 0
