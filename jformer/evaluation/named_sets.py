"""sacreBLEU's named test sets, such as `wmt14/full`, `iwslt17/tst2015` and `multi30k/2016`.

sacreBLEU downloads a set once and keeps it in $SACREBLEU, or ~/.sacrebleu. Its `wmt14` lacks 266 of
the 3,003 English-German sentences of newstest2014; `wmt14/full` has all of them.
"""

from pathlib import Path

import sacrebleu
from sacrebleu.dataset.fake_sgml import FakeSGMLDataset

from jformer.data.corpora import decode_lines, read_lines, unescape
from jformer.errors import UserError


def open_test_set(name: str, source_language: str, target_language: str) -> list[list[str]]:
    """Return the sources, and the references of each translator."""
    pair = f"{source_language}-{target_language}"
    if pair not in sacrebleu.get_langpairs_for_testset(name):
        raise UserError(f"{name}: unknown test set for {pair}; `sacrebleu --list` prints all")
    try:
        files = [sacrebleu.get_source_file(name, pair), *sacrebleu.get_reference_files(name, pair)]
    # The network and the archive raise errors of any type, or sacreBLEU logs the reason and exits.
    except (Exception, SystemExit) as error:
        raise UserError(
            f"{name}: cannot be downloaded ({error}); without a network, copy the folder "
            f"{sacrebleu.SACREBLEU_DIR}/{name} from a machine that has it"
        ) from error
    return [read(name, file) for file in files]


def read(name: str, file: str) -> list[str]:
    """Return the lines of a file; sacreBLEU leaves escapes such as &amp; in text from SGML."""
    is_escaped = isinstance(sacrebleu.DATASETS[name], FakeSGMLDataset)
    lines = read_lines(Path(file))
    return [*decode_lines(map(unescape, lines) if is_escaped else lines, file)]
