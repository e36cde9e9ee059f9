"""Reads requests that a collector of OpenTelemetry got, with the project's own messages (opentelemetry-proto of PyPI), which know
nothing of memleak. Checks what the protocol demands of tables and indices, and prints each request as a line of JSON in which
entries of tables are in place of their indices.

usage: tests/read_otlp.py FILE…    each the compressed body of a request
"""

import gzip
import json
import sys

from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceRequest
from opentelemetry.proto.profiles.v1development import profiles_pb2 as messages


def value(any_value):
    kind = any_value.WhichOneof("value")
    if kind == "array_value":
        return [value(one) for one in any_value.array_value.values]
    assert kind in ("string_value", "int_value"), kind
    return getattr(any_value, kind)


class Dictionary:
    def __init__(self, tables):
        self.tables = tables
        for name, message in [
            ("mapping", messages.Mapping),
            ("location", messages.Location),
            ("function", messages.Function),
            ("link", messages.Link),
            ("attribute", messages.KeyValueAndUnit),
            ("stack", messages.Stack),
        ]:
            table = getattr(tables, name + "_table")
            assert table[0] == message(), f"{name}: {table[0]}"
            entries = [one.SerializeToString(deterministic=True) for one in table]
            assert len(set(entries)) == len(entries), f"{name}: entries twice"
        assert tables.string_table[0] == ""
        assert len(set(tables.string_table)) == len(tables.string_table)

    def get(self, table, index):
        entries = getattr(self.tables, table + "_table")
        assert 0 <= index < len(entries), f"{table} {index} of {len(entries)}"
        return entries[index]

    def attributes(self, indices):
        found = {}
        for index in indices:
            assert index != 0
            attribute = self.get("attribute", index)
            key = self.get("string", attribute.key_strindex)
            assert key and key not in found, f"{key} twice"
            found[key] = value(attribute.value)
        return found

    def frame(self, index):
        assert index != 0
        location = self.get("location", index)
        mapping = self.get("mapping", location.mapping_index)
        if location.mapping_index:
            assert mapping.memory_start <= location.address < mapping.memory_limit, f"{location} {mapping}"
        functions = [self.get("function", line.function_index) for line in location.lines]
        assert all(line.function_index for line in location.lines)
        return {
            "module": self.get("string", mapping.filename_strindex) or None,
            "build_id": self.attributes(mapping.attribute_indices).get("process.executable.build_id.gnu"),
            "functions": [self.get("string", function.name_strindex) for function in functions],
            "kind": self.attributes(location.attribute_indices).get("profile.frame.type"),
        }

    def profile(self, profile):
        kind = profile.sample_type
        samples, identities = [], set()
        for sample in profile.samples:
            assert sample.stack_index != 0 and sample.link_index == 0 and len(sample.values) == 1
            identities.add((sample.stack_index, frozenset(sample.attribute_indices)))
            stack = self.get("stack", sample.stack_index)
            samples.append({
                "frames": [self.frame(index) for index in stack.location_indices],
                "attributes": self.attributes(sample.attribute_indices),
                "value": sample.values[0],
            })
        assert len(identities) == len(samples), "samples of one identity"
        assert len(profile.profile_id) == 16 and any(profile.profile_id)
        return {
            "type": self.get("string", kind.type_strindex),
            "unit": self.get("string", kind.unit_strindex),
            "from_ns": profile.time_unix_nano,
            "duration_ns": profile.duration_nano,
            "id": profile.profile_id.hex(),
            "attributes": self.attributes(profile.attribute_indices),
            "samples": samples,
        }


def main():
    for path in sys.argv[1:]:
        with gzip.open(path) as file:
            request = ExportProfilesServiceRequest.FromString(file.read())
        # A field that its messages do not have is kept, and would make this longer.
        known = ExportProfilesServiceRequest()
        known.CopyFrom(request)
        known.DiscardUnknownFields()
        assert known.ByteSize() == request.ByteSize(), "unknown fields"
        dictionary = Dictionary(request.dictionary)
        for resource in request.resource_profiles:
            attributes = {one.key: value(one.value) for one in resource.resource.attributes}
            assert len(attributes) == len(resource.resource.attributes)
            for scope in resource.scope_profiles:
                print(json.dumps({
                    "resource": attributes,
                    "scope": scope.scope.name,
                    "profiles": [dictionary.profile(profile) for profile in scope.profiles],
                }))


main()
