"""Reads a dashboard by Grafana's own model (grafana-foundation-sdk of PyPI), writes it again, and prints all
parts of it that the model does not know, as these are missing then.

usage: tests/read_dashboard.py FILE
"""

import json
import sys

from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard


def missing(given, known, path=""):
    """Yields the places that differ."""
    if isinstance(given, dict) and isinstance(known, dict):
        for name, value in given.items():
            yield from missing(value, known.get(name), f"{path}/{name}")
    elif isinstance(given, list) and isinstance(known, list) and len(given) == len(known):
        for number, (one, other) in enumerate(zip(given, known)):
            yield from missing(one, other, f"{path}/{number}")
    elif given != known:
        yield f"{path}: {given} became {known}"


def main():
    plugins.register_default_plugins()
    with open(sys.argv[1]) as file:
        given = json.load(file)
    dashboard = Dashboard.from_json(given)
    lost = list(missing(given, json.loads(JSONEncoder().encode(dashboard))))
    if lost:
        sys.exit("\n".join(lost))
    print(f"{dashboard.title}: {len(dashboard.panels)} panels")


main()
