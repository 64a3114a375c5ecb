"""A program in place of a run: it saves every step, resumes, obeys SIGTERM and prints scores.

    python small_program.py WORKDIR STEPS CONFIG

It fails if its run directory has a file `fails`.
"""

import json
import signal
import sys
import time
from pathlib import Path

workdir, steps = Path(sys.argv[1]), int(sys.argv[2])
requests = []
signal.signal(signal.SIGTERM, lambda *_: requests.append("stop"))
(workdir / "config.json").write_text(sys.argv[3])
if (workdir / "fails").exists():
    sys.exit("small_program: it was told to fail")
checkpoints = workdir / "checkpoints"
checkpoints.mkdir(exist_ok=True)
first = max((int(path.name) for path in checkpoints.iterdir()), default=0)
sys.stderr.write(f"from step {first}\n")
for step in range(first + 1, steps + 1):
    with (workdir / "metrics.jsonl").open("a") as metrics:
        metrics.write(json.dumps({"step": step, "split": "validation", "nll": 1 / step}) + "\n")
    (checkpoints / str(step)).mkdir()
    sys.stderr.write(f"step {step}/{steps}\n")
    sys.stderr.flush()
    if requests:
        sys.stderr.write("small_program: stopped, all is saved\n")
        sys.exit(128 + signal.SIGTERM)
    time.sleep(0.02)
scores = json.dumps({"validation": {"checkpoint": "last", "step": steps, "bleu": steps}})
(workdir / "results.json").write_text(scores)
sys.stdout.write(scores)
