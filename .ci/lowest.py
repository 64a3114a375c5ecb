"""Print the lowest versions that pyproject.toml allows, as constraints for `pip install -c`."""

import re
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
for requirement in (*project["dependencies"], *project["optional-dependencies"]["test"]):
    bound = re.fullmatch(r"([\w-]+)>=([\d.]+)(,<[\d.]+)?", requirement)
    if not bound:
        raise SystemExit(f"pyproject.toml: {requirement!r} needs a lower bound like 'name>=1.2'")
    print(f"{bound[1]}=={bound[2]}")
