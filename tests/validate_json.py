"""Checks JSON, one value on each line, against a schema of `docs/` with Debian's python3-jsonschema, which knows nothing of
memleak. Prints each violation, with where it is; status 1 if there is any.

usage: tests/validate_json.py SCHEMA [FILE]…    standard input without a FILE
"""

import json
import pathlib
import sys
import warnings

with warnings.catch_warnings():
    # Newer versions have another way to say where schemas are, which Debian 12's does not know.
    warnings.simplefilter("ignore", DeprecationWarning)
    from jsonschema import Draft202012Validator, RefResolver

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"


def main():
    schemas = [json.loads(path.read_text()) for path in sorted(DOCS.glob("*.schema.json"))]
    for schema in schemas:
        Draft202012Validator.check_schema(schema)
    known = {schema["$id"]: schema for schema in schemas}
    wanted = json.loads((DOCS / sys.argv[1]).read_text())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        validator = Draft202012Validator(wanted, resolver=RefResolver(wanted["$id"], wanted, store=known))
    lines, violations = 0, 0
    for file in [open(path) for path in sys.argv[2:]] or [sys.stdin]:
        for line in file:
            lines += 1
            for error in validator.iter_errors(json.loads(line)):
                violations += 1
                print(f"line {lines}, {error.json_path}: {error.message[:500]}")
    print(f"{lines} checked, {violations} violations")
    sys.exit(violations > 0 or lines == 0)


main()
