"""The completion of each shell, by what the shell makes of keys that are typed."""

import pytest

from jformer.main import COMMANDS, main


@pytest.mark.parametrize("shell", ["bash", "tcsh"])
def test_the_script_has_every_command_with_its_flags(shell, capsys):
    assert main(["jformer", "completion", shell]) == 0
    script = capsys.readouterr().out
    for word in (*COMMANDS, "dry_run", "config.model.d_model"):
        assert word in script
