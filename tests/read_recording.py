"""Reads a recording as `src/recording/mod.rs` describes it, with nothing of memleak: what each report says is
outstanding, by the innermost named function of each stack. Prints a JSON object per report."""

import json
import struct
import sys
import zlib

import cbor2


def chunks(data):
    assert data[:8] == b"\x89memleak" and struct.unpack_from("<I", data, 8) == (1,)
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


def function(defined, site):
    path = site.get("path")
    while path is not None:
        path, frame = defined["paths"][path]
        names = defined["names"][defined["frames"][frame].get("names", 0)]
        inlined = [inlined.get("symbol") for inlined in names.get("inlined", [])]
        for symbol in inlined + [names.get("symbol")]:
            if symbol is not None:
                return defined["texts"][symbol]
    return "?"


def main():
    sorts = ["texts", "modules", "names", "frames", "paths", "sites"]
    defined = {sort: [] for sort in sorts}
    amounts = []
    for kind, content in chunks(open(sys.argv[1], "rb").read()):
        if kind == b"defs":
            for sort in sorts:
                defined[sort] += content.get(sort, [])
        elif kind == b"amts":
            amounts += content
        elif kind == b"rept":
            assert content.get("stacks", 0) == len(amounts)
            sums = {}
            for amount in amounts:
                name = function(defined, defined["sites"][amount.get("site", 0)])
                outstanding = amount.get("outstanding", {})
                sum_of = sums.setdefault(name, [0, 0])
                sum_of[0] += outstanding.get("bytes", 0)
                sum_of[1] += outstanding.get("blocks", 0)
            print(json.dumps({"number": content["number"], "outstanding": sums}))
            amounts = []


main()
