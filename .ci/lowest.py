"""Prints the lowest versions that pyproject.toml allows, as the constraints of `pip install -c`."""

import re
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
for requirement in (*project["dependencies"], *project["optional-dependencies"]["test"]):
    bound = re.fullmatch(r"([\w-]+)>=([\d.]+)(,<[\d.]+)?", requirement)
    if not bound:
        raise SystemExit(f"pyproject.toml: {requirement!r} has no lower bound, as in 'name>=1.2'")
    print(f"{bound[1]}=={bound[2]}")
