#!/bin/sh
# Checks dependencies by cargo-deny, which is installed if it is missing: licences, sources and, if their database can be
# fetched, advisories.
set -eu
cd "$(dirname "$0")/.."
command -v cargo-deny >/dev/null || cargo install --locked cargo-deny
cargo deny --config .ci/deny.toml check licenses bans sources
if cargo deny --config .ci/deny.toml fetch db 2>/dev/null; then
    cargo deny --config .ci/deny.toml check advisories
else
    echo 'note: advisories are not checked: their database (https://github.com/RustSec/advisory-db) cannot be fetched from here'
fi
