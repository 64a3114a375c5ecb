"""Print the script with which a shell completes commands, flags, config keys and their values.

    completion bash|zsh|fish

In .bashrc: eval "$(jformer completion bash)", and in .zshrc the same with zsh; in config.fish:
jformer completion fish | source.
"""

import importlib
import pkgutil
import re

from jformer import commands as core
from jformer.command_line import OF_RUN, own_configs
from jformer.commands.model_flags import OF_MODEL
from jformer.config import Config
from jformer.errors import UserError
from jformer.extras import commands
from jformer.schema import walk

# All words are in the script: pressing tab starts no Python. Where none fits, files are completed.
BASH = r"""_jformer() {
  local line="${COMP_LINE:0:COMP_POINT}" last="${COMP_WORDS[COMP_CWORD]}" IFS=$' \t\n'
  local word="${line##*[[:space:]]}" command="${COMP_WORDS[1]}" list flags keys values
  case $command in
CASES
  esac
  case $word in
    --*=*) list=$values ;;
    --config.*) list=$keys ;;
    -*) list=$flags ;;
    *) (( COMP_CWORD == 1 )) && list="COMMANDS" ;;
  esac
  # Bash replaces only what follows the last = or :, so the rest is taken off the completions.
  [[ $last == [=:] ]] && last=
  local before="${word%"$last"}"
  COMPREPLY=($(compgen -W "$list" -- "$word"))
  COMPREPLY=("${COMPREPLY[@]#"$before"}")
  if [[ ${COMPREPLY[0]} ]]; then
    [[ ${COMPREPLY[0]} == *[=.] ]] || compopt +o nospace
  else
    compopt -o filenames +o nospace
    IFS=$'\n'
    COMPREPLY=($(compgen -f -- "${word#--*=}"))
  fi
}
complete -o nospace -F _jformer jformer"""

ZSH = r"""_jformer() {
  local word="${words[CURRENT]}" command="${words[2]}" list flags keys values
  case $command in
CASES
  esac
  case $word in
    --*=*) list=$values ;;
    --config.*) list=$keys ;;
    -*) list=$flags ;;
    *) (( CURRENT == 2 )) && list="COMMANDS" ;;
  esac
  local -a found=(${(M)${=list}:#${(b)word}*})
  if (( ! $#found )); then
    compset -P '--*='
    _files
  elif [[ $found[1] == *[=.] ]]; then
    compadd -S '' -- $found
  else
    compadd -- $found
  fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _jformer jformer"""

FISH = r"""function _jformer
  set -l before (commandline -opc)
  set -l word (commandline -ct)
  set -l list
  switch "$before[2]"
CASES
  end
  switch $word
    case '--*=*'
      set list $values
    case '--config.*'
      set list $keys
    case '-*'
      set list $flags
    case '*'
      test (count $before) = 1; and set list COMMANDS
  end
  string match -- "$word*" $list
end
complete -c jformer -a '(_jformer)'"""

BRANCH = """    NAME)
      flags="FLAGS"
      keys="KEYS"
      values="VALUES" ;;"""
FISH_BRANCH = """    case 'NAME'
      set flags FLAGS
      set keys KEYS
      set values VALUES"""
SHELLS = {"bash": (BASH, BRANCH), "zsh": (ZSH, BRANCH), "fish": (FISH, FISH_BRANCH)}


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        raise UserError(f"completion takes one word: {', '.join(SHELLS)}")
    script, branch = SHELLS[arguments[0]]
    words = {name: words_of(doc) for name, doc in docstrings().items()}
    script = script.replace("COMMANDS", " ".join(words))
    print(script.replace("CASES", cases(words, branch)))
    return 0


def docstrings() -> dict[str, str]:
    """Return the docstrings of all commands, by their names."""
    names = {
        module.name: f"{package.__name__}.{module.name}"
        for package in (core, commands)
        for module in pkgutil.iter_modules(package.__path__)
    }
    # `import` is a word of Python, so its module is import_.
    modules = {n.rstrip("_"): importlib.import_module(path) for n, path in names.items()}
    return {n: module.__doc__ or "" for n, module in modules.items() if hasattr(module, "main")}


def words_of(doc: str) -> dict[str, list[str]]:
    """Return the flags that a command's docstring tells of, as `--data=`, each with its values."""
    valued = [*re.findall(r"--([a-z_]+)=", doc), *(OF_MODEL if "[MODEL]" in doc else ())]
    known = dict.fromkeys([*valued, *re.findall(r"--([a-z_]+)(?![\w.])", doc), "help", "debug"])
    flags: dict[str, list[str]] = {f"--{n}=" if n in valued else f"--{n}": [] for n in known}
    for name, choices in re.findall(r"--([a-z_]+)=((?:\w+\|)+\w+)", doc):
        flags[f"--{name}="] = choices.split("|")
    if "[MODEL]" in doc:
        flags["--checkpoint="] = ["served", "average", "last", "best"]
    if "--config=" in flags:
        flags["--config="] = [*own_configs()]
    for key, field, value in walk(Config()):
        flag = f"--config.{key}="
        if "CONFIG" in doc or ("[MODEL]" in doc and re.match(OF_RUN, flag)):
            booleans = ["True", "False"] if isinstance(value, bool) else []
            flags[flag] = [*field.metadata["bounds"]] if isinstance(value, str) else booleans
    return flags


def cases(words: dict[str, dict[str, list[str]]], branch: str) -> str:
    """Return a branch for each command, which sets its flags, keys and values; train is last.

    That of train is for any other word, too: without a command, flags are those of train.
    """
    branches = []
    for name in sorted(words, key=lambda name: name == "train"):
        keys = [flag for flag in words[name] if flag.startswith("--config.")]
        flags = [flag for flag in words[name] if flag not in keys] + ["--config."] * bool(keys)
        values = [flag + value for flag, known in words[name].items() for value in known]
        filled = branch.replace("NAME", name if name != "train" else "*")
        for mark, list_ in (("FLAGS", flags), ("KEYS", keys), ("VALUES", values)):
            filled = filled.replace(mark, " ".join(list_))
        branches.append(filled)
    return "\n".join(branches)
