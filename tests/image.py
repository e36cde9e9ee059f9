#!/usr/bin/env python3
"""Makes an OCI image of an archive that tests/package.sh has made: one layer with the program, its library and its licences, no
base. Nothing is downloaded and no daemon is needed; the same archive makes the same image, to the byte.

usage: tests/image.py ARCHIVE DIRECTORY     ARCHIVE is memleak-VERSION-PROCESSOR-linux.tar.xz

The image is DIRECTORY/memleak-VERSION-PROCESSOR-linux.oci.tar, an image layout (https://github.com/opencontainers/image-spec,
image-layout.md) for `skopeo copy oci-archive:FILE docker://…`, `podman load` and `docker load`.
"""

import datetime
import gzip
import hashlib
import io
import json
import pathlib
import re
import sys
import tarfile

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# From the directory in the archive into the layer.
FILES = [
    ("bin/memleak", "usr/bin/memleak", 0o755),
    ("lib/memleak/libmemleak.so", "usr/lib/memleak/libmemleak.so", 0o644),
    ("share/doc/memleak/copyright", "usr/share/doc/memleak/copyright", 0o644),
]
# Directories of the layer. Processes are in /proc; recordings from pipes are copied into /tmp.
DIRECTORIES = [(name, 0o755) for name in ("proc", "sys", "usr", "usr/bin", "usr/lib", "usr/lib/memleak")]
DIRECTORIES += [(name, 0o755) for name in ("usr/share", "usr/share/doc", "usr/share/doc/memleak")] + [("tmp", 0o1777)]
MEDIA = "application/vnd.oci.image."


def entry(name, mode, time, kind=tarfile.REGTYPE, size=0):
    info = tarfile.TarInfo(name)
    info.mode, info.mtime, info.type, info.size = mode, time, kind, size
    return info


def layer(archive, root):
    """Returns the layer's tar, and the time of its files."""
    out = io.BytesIO()
    time = int(archive.getmember(f"{root}/{FILES[0][0]}").mtime)
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, mode in sorted(DIRECTORIES):
            tar.addfile(entry(name, mode, time, tarfile.DIRTYPE))
        for source, name, mode in FILES:
            content = archive.extractfile(f"{root}/{source}").read()
            tar.addfile(entry(name, mode, time, size=len(content)), io.BytesIO(content))
    return out.getvalue(), time


class Blobs:
    def __init__(self):
        self.contents = {}

    def add(self, media, content):
        digest = hashlib.sha256(content).hexdigest()
        self.contents[digest] = content
        return {"mediaType": MEDIA + media, "digest": f"sha256:{digest}", "size": len(content)}

    def add_json(self, media, value):
        return self.add(media, compact(value))


def compact(value):
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def main():
    source, directory = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    found = re.fullmatch(r"(memleak-(.+)-(x86_64|aarch64)-linux)\.tar\.xz", source.name)
    if not found:
        sys.exit(f"error: `{source.name}` is not memleak-VERSION-PROCESSOR-linux.tar.xz: make dist")
    root, version, processor = found.groups()
    with tarfile.open(source) as archive:
        content, time = layer(archive, root)
    created = datetime.datetime.fromtimestamp(time, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    annotations = {
        "org.opencontainers.image.title": "memleak",
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.created": created,
        "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
        "org.opencontainers.image.description": "Memory leak tracer with complete call stacks",
    }
    blobs = Blobs()
    config = blobs.add_json("config.v1+json", {
        "architecture": ARCHITECTURES[processor],
        "os": "linux",
        "created": created,
        "config": {
            "Entrypoint": ["/usr/bin/memleak"],
            "Cmd": ["--help"],
            "Env": ["PATH=/usr/bin"],
            "Labels": annotations,
        },
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(content).hexdigest()]},
        "history": [{"created": created, "created_by": "tests/image.py", "comment": f"memleak {version}"}],
    })
    compressed = blobs.add("layer.v1.tar+gzip", gzip.compress(content, 9, mtime=0))
    manifest = blobs.add_json("manifest.v1+json", {
        "schemaVersion": 2,
        "mediaType": MEDIA + "manifest.v1+json",
        "config": config,
        "layers": [compressed],
        "annotations": annotations,
    })
    manifest["platform"] = {"architecture": ARCHITECTURES[processor], "os": "linux"}
    manifest["annotations"] = {"org.opencontainers.image.ref.name": version}
    index = {"schemaVersion": 2, "mediaType": MEDIA + "index.v1+json", "manifests": [manifest]}
    files = {"oci-layout": compact({"imageLayoutVersion": "1.0.0"}), "index.json": compact(index)}
    files.update({f"blobs/sha256/{digest}": content for digest, content in sorted(blobs.contents.items())})
    with tarfile.open(directory / f"{root}.oci.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for name in ("blobs", "blobs/sha256"):
            tar.addfile(entry(name, 0o755, time, tarfile.DIRTYPE))
        for name, content in files.items():
            tar.addfile(entry(name, 0o644, time, size=len(content)), io.BytesIO(content))


main()
