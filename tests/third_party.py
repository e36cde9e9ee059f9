#!/usr/bin/env python3
"""Writes the licences of all that is linked into memleak: crates by what cargo says, C libraries by Debian's copyright files.

usage: tests/third_party.py TARGET      in the root of the repository
"""

import json
import pathlib
import subprocess
import sys

# Debian packages whose static libraries are linked.
C_LIBRARIES = ["libelf-dev", "zlib1g-dev", "libc6-dev"]
TEXTS = ("licen", "copying", "notice", "unlicense")


def linked_crates(target):
    """Crates that the program is made of: not those that build scripts, macros and tests need."""
    command = ["cargo", "tree", "--locked", "--package", "memleak", "--edges", "normal,no-proc-macro"]
    command += ["--target", target, "--prefix", "none", "--format", "{p}"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return {tuple(line.split()[:2]) for line in lines if line}


def packages(target):
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    own = set(found["workspace_members"])
    return [package for package in found["packages"] if package["id"] not in own]


def texts_of(package):
    """The licence texts that come with a crate, by file name."""
    directory = pathlib.Path(package["manifest_path"]).parent
    named = [package["license_file"]] if package.get("license_file") else []
    for path in sorted(directory.rglob("*")):
        if path.name.lower().startswith(TEXTS) and len(path.relative_to(directory).parts) <= 2:
            named.append(path.relative_to(directory))
    for name in dict.fromkeys(map(str, named)):
        path = directory / name
        if path.is_file() and path.suffix not in (".rs", ".py", ".json"):
            yield name, path.read_text(errors="replace").strip()


def main():
    (target,) = sys.argv[1:]
    linked = linked_crates(target)
    texts = {}
    print("memleak is linked with the following. Their licences follow, each text once.\n")
    for package in sorted(packages(target), key=lambda package: package["name"]):
        name, version = package["name"], package["version"]
        if (name, f"v{version}") not in linked:
            continue
        terms = package["license"] or "see its file"
        source = package["repository"] or package["homepage"] or "crates.io"
        print(f"{name} {version}: {terms}\n    {source}")
        for file, text in texts_of(package):
            texts.setdefault(text, []).append(f"{name} {version} ({file})")
    for name in C_LIBRARIES:
        file = pathlib.Path(f"/usr/share/doc/{name}/copyright")
        if not file.exists():
            sys.exit(f"{file} is missing: apt-get install {name}")
        print(f"{name}, of Debian")
        texts.setdefault(file.read_text().strip(), []).append(f"{name} ({file})")
    for text, names in texts.items():
        print("\n" + "=" * 80)
        print("\n".join(names))
        print("-" * 80)
        print(text)


main()
