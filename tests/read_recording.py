"""Reads a recording as `src/sinks/recording/mod.rs` describes it, with nothing of memleak: what each report says is
outstanding, by the innermost named function of each stack. Prints a JSON object per report."""

import json
import struct
import sys
import zlib

import cbor2


def chunks(data):
    assert data[:8] == b"\x89memleak" and struct.unpack_from("<I", data, 8) == (2,)
    at = 32
    while len(data) - at >= 16:
        kind, length, stored, checksum = struct.unpack_from("<4sIII", data, at)
        body = data[at + 16 : at + 16 + stored]
        if len(body) < stored:
            return
        assert zlib.crc32(data[at : at + 12] + body) == checksum
        cbor = zlib.decompress(body)
        assert len(cbor) == length
        yield kind, cbor2.loads(cbor)
        at += 16 + stored


def function(defined, path):
    while path is not None:
        entry = defined["paths"][path]
        names = defined["names"][defined["frames"][entry["frame"]]["names"]]
        own = names.get("symbol") or {}
        for symbol in [inlined.get("symbol") for inlined in names["inlined"]] + [own.get("name")]:
            if symbol is not None:
                return defined["texts"][symbol]["text"]
        path = entry["caller"]
    return "?"


def main():
    defined = {table: [] for table in ["texts", "modules", "names", "frames", "paths"]}
    stacks = []
    for kind, content in chunks(open(sys.argv[1], "rb").read()):
        if kind == b"defs":
            for table, entries in defined.items():
                entries += content[table]
        elif kind == b"stks":
            stacks += content
        elif kind == b"rept":
            assert content["stacks"] == len(stacks)
            sums = {}
            for stack in stacks:
                sum_of = sums.setdefault(function(defined, stack["path"]), [0, 0])
                amount = stack["outstanding"]["amount"]
                sum_of[0] += amount["bytes"]
                sum_of[1] += amount["blocks"]
            print(json.dumps({"number": content["number"], "outstanding": sums}))
            stacks = []


main()
