"""A program in the place of a run: it saves every step, goes on, obeys SIGTERM, prints scores.

    python small_program.py WORKDIR STEPS CONFIG

Attention dropout costs BLEU, dropout does so with other seeds than 0, and without case all is the
other way round. Perplexity falls with attention dropout. It fails where there is a file `fails` in
its run directory, and waits while there is a file `hold`.
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
    if requests:
        sys.stderr.write("small_program: stopped, all is saved\n")
        sys.exit(128 + signal.SIGTERM)
    time.sleep(0.02)
    while (workdir / "hold").exists():
        time.sleep(0.01)
config = json.loads(sys.argv[3])
loss = config["model"]["attention_dropout"] + config["seed"] * config["model"]["dropout"]
bleu = {"bleu": steps - loss, "bleu_lowercase": steps + loss}
scores = json.dumps(
    {"validation": {**bleu, "perplexity": 10 - config["model"]["attention_dropout"]}}
)
(workdir / "results.json").write_text(scores)
sys.stdout.write(scores)
