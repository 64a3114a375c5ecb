"""Run a sweep: `python -m experiments.run FILE [FLAGS]` is `jformer sweep FILE [FLAGS]`."""

import sys

from jformer.main import main

if __name__ == "__main__":
    sys.exit(main(["jformer", "sweep", *sys.argv[1:]]))
