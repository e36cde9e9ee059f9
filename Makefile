# `make demo` shows what memleak does, `make test` runs everything, `make help` lists all there is. What is missing is
# installed first.

.PHONY: help demo build quick docs test test-fresh dist image build-arm64 dist-arm64 setup-build setup-test setup-dist setup-arm64 setup-kernels setup-fresh test-kernels newest-kernel fmt compile lint clippy without-features features doc suites live rebuild bench-smoke demo-smoke bench verify-arm64 chaos soak deny fuzz
.NOTPARALLEL:

CARGO := cargo
STEP := tests/step.sh
# Where rustup puts it, for a shell that has not read ~/.cargo/env.
export PATH := $(PATH):$(HOME)/.cargo/bin

# Tests trace real processes. Built as the user, they run as root.
ifneq ($(shell id -u),0)
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER := sudo -E
# Behind a step: what root wrote is given back.
GIVE_BACK := ; status=$$?; sudo chown -R $(shell id -u):$(shell id -g) target/tmp; exit $$status
endif

help:
	@echo 'make demo          set up, build, trace a sample leaker'
	@echo 'make build         set up, build target/release/memleak'
	@echo 'make dist          set up, build target/dist: a Debian package and an archive, of a static program'
	@echo 'make image         make dist, and target/dist/memleak-VERSION-x86_64-linux.oci.tar: an image for containers, made without a daemon'
	@echo 'make quick         formatting, lints and pure tests: no root, under a minute after a build'
	@echo 'make test          set up, run all checks and tests (root, or sudo)'
	@echo '  its steps:       make fmt compile lint suites live rebuild bench-smoke demo-smoke'
	@echo 'make build-arm64   the program for arm64, in target/aarch64-unknown-linux-gnu/release; on x86-64'
	@echo 'make dist-arm64    its packages, in target/dist-arm64'
	@echo 'make test-kernels  core tests on this kernel, and under qemu on each of tests/kernels/list, from Linux 6.1 to the newest, for'
	@echo '                   x86-64 and arm64 (root; hours; KERNELS="own 6.12-arm64" for some, KERNELS=newest for what is newest now)'
	@echo 'make test-fresh    make demo and make test in a new minimal Debian 12, 13 and testing (root; hours; RELEASES=trixie for one)'
	@echo 'make chaos         end memleak ROUNDS=300 times on each of several programs at work; SEED=1'
	@echo 'make soak          trace a slow leak in heavy churn for MINUTES=5, at LOAD=30 per cent of one CPU'
	@echo 'make fuzz          try claims about untrusted input, MINUTES=10 for each target (tests/fuzz/README.md)'
	@echo 'make docs          what is generated of docs/: docs/cli.md'
	@echo 'make verify-arm64  compare the unwind tables of Debian packages for arm64 with gimli (0.5 GB to download)'
	@echo 'make deny          licences, sources and advisories of dependencies, by cargo-deny'
	@echo 'make bench         all of benches/RESULTS.md: costs, scaling, other tools (root, or sudo; an hour)'

setup-build:
	@tests/setup.sh build

setup-test:
	@tests/setup.sh test

setup-dist:
	@tests/setup.sh dist

setup-arm64:
	@tests/setup.sh arm64

setup-kernels:
	@tests/setup.sh kernels $(KERNELS)

setup-fresh:
	@tests/setup.sh fresh

build: setup-build
	@$(STEP) build $(CARGO) build --release --locked

# For arm64, on this machine: what it is linked with comes from Debian's packages, as data.
build-arm64: setup-arm64
	@$(STEP) build-arm64 tests/arm64.sh build --release --locked

# Without libraries, and without this machine's paths. The target is named so that build scripts and macros are built as ever.
DIST_TARGET := x86_64-unknown-linux-gnu
DIST_FLAGS := -C target-feature=+crt-static --remap-path-prefix=$(CURDIR)=/memleak \
	--remap-path-prefix=$(or $(CARGO_HOME),$(HOME)/.cargo)=/cargo

dist: setup-dist
	@RUSTFLAGS='$(DIST_FLAGS)' LIBBPF_SYS_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu \
		$(STEP) dist $(CARGO) build --release --locked --features static --target $(DIST_TARGET)
	@$(STEP) dist tests/package.sh target/$(DIST_TARGET)/release/memleak target/dist

image: dist
	@$(STEP) image tests/image.py "$$(ls -t target/dist/memleak-*-x86_64-linux.tar.xz | head -n 1)" target/dist

# For arm64; pages of the manual and completions are written by this machine's.
DIST_ARM64 := target/aarch64-unknown-linux-gnu/release/memleak
dist-arm64: setup-arm64 dist
	@RUSTFLAGS='$(DIST_FLAGS)' $(STEP) dist-arm64 tests/arm64.sh build --release --locked
	@$(STEP) dist-arm64 tests/package.sh $(DIST_ARM64) target/dist-arm64 arm64 target/$(DIST_TARGET)/release/memleak

demo: build
	@tests/demo.sh target/release/memleak

# Suites that have tests without root.
QUICK := $(patsubst "%",--test %,$(shell sed -n 's/^pub const QUICK_SUITES.*\[\(.*\)\];/\1/p' crates/test/src/program.rs | tr ',' ' '))
WITHOUT_ROOT := env -u CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER

quick: fmt
	@$(STEP) quick $(CARGO) clippy --workspace --locked --lib --bins $(QUICK) -- -D warnings
	@MEMLEAK_SHORT_LOAD=1 RUST_TEST_THREADS=$(TEST_THREADS) $(WITHOUT_ROOT) $(STEP) quick $(CARGO) test --workspace --locked --lib $(QUICK) -- --skip _as_root

# One profile throughout, so that dependencies are compiled once, and for the next clean clone, too: what is measured runs in
# the kernel. Lints take what the suites leave of the CPUs; tests/live, which measures what tracing costs, runs by itself.
test: setup-test
	@tests/dependencies.sh restore
	@$(MAKE) --no-print-directory fmt compile
	@tests/beside.sh '$(MAKE) --no-print-directory lint' '$(MAKE) --no-print-directory suites'
	@tests/dependencies.sh save
	@$(MAKE) --no-print-directory live rebuild bench-smoke demo-smoke
	@echo '==> all passed'

# Of other packages than this machine's, as data: nothing of them is installed or run.
verify-arm64: build
	@$(STEP) verify-arm64 tests/verify_arm64.sh target/release/memleak target/arm64

fmt:
	@$(STEP) fmt $(CARGO) fmt --all --check

lint: clippy without-features doc

clippy:
	@$(STEP) clippy $(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	@RUSTFLAGS='--cfg memleak_preload -C panic=abort' $(STEP) clippy $(CARGO) clippy -p memleak-alloc --lib --locked -- -D warnings

# What can be left out of a build: without it, the rest has no warnings.
without-features:
	@$(STEP) without-features $(CARGO) clippy --locked --no-default-features -- -D warnings

# Before a release: with one of them alone, too.
features: without-features
	@for feature in net tui; do \
		$(STEP) features $(CARGO) clippy --locked --no-default-features --features $$feature -- -D warnings || exit; \
	done

doc:
	@RUSTDOCFLAGS='-D warnings' $(STEP) doc $(CARGO) doc --workspace --no-deps --locked
	@$(STEP) doc $(CARGO) test --workspace --locked --doc

compile:
	@$(STEP) compile $(CARGO) test --workspace --locked --no-run

# Tests wait as long as they compute: for the kernel to change code, for programs, and for reports.
TEST_THREADS := $(shell echo $$(($$(nproc) * 5 / 2)))
TESTS := RUST_TEST_THREADS=$(TEST_THREADS) \
	CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER='$(CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER) $(CURDIR)/tests/slowest.sh' $(STEP)

# All but tests/live, of every crate.
SUITES := $(filter-out live,$(notdir $(patsubst %/main.rs,%,$(wildcard tests/*/main.rs */tests/*/main.rs crates/*/tests/*/main.rs)) \
	$(basename $(wildcard */tests/*.rs))))
suites:
	@$(TESTS) suites $(CARGO) test --workspace --locked --no-fail-fast --lib $(SUITES:%=--test %) $(GIVE_BACK)

live:
	@$(TESTS) live $(CARGO) test --workspace --locked --test live $(GIVE_BACK)

# The reference of all flags. Its test fails where it is not what the program says.
docs: setup-build
	@MEMLEAK_UPDATE_DOCS=1 $(STEP) docs $(CARGO) test --locked --lib reference

ROUNDS ?= 300
SEED ?= 1
chaos: setup-test
	@MEMLEAK_CHAOS_ROUNDS=$(ROUNDS) MEMLEAK_CHAOS_SEED=$(SEED) RUST_TEST_THREADS=$(TEST_THREADS) \
		$(STEP) chaos $(CARGO) test --locked --test endurance chaos -- --nocapture $(GIVE_BACK)

LOAD ?= 30
soak: setup-test
	@MEMLEAK_SOAK_MINUTES=$(or $(MINUTES),5) MEMLEAK_SOAK_LOAD=$(LOAD) \
		$(STEP) soak $(CARGO) test --locked --test endurance soak -- --nocapture $(GIVE_BACK)

# What is built is not built again.
rebuild:
	@$(STEP) rebuild tests/rebuild.sh $(CARGO) test --workspace --locked --no-run

# Each benchmark once, quickly; the cost of probes against its limit.
bench-smoke:
	@$(STEP) bench-smoke $(CARGO) test --workspace --locked --bench '*' $(GIVE_BACK)

# The program as tests build it: as `cargo build` does, some dependencies would be compiled again.
demo-smoke:
	@$(STEP) demo-smoke $(CARGO) test --locked --no-run --quiet --test cli
	@$(STEP) demo-smoke tests/demo.sh target/debug/memleak

# Debian's kernels, under qemu: not a part of `make test`.
test-kernels: setup-kernels
	@$(STEP) test-kernels tests/kernels.sh $(KERNELS)

# A part of CI: the newest of them, if what boots it is installed.
newest-kernel:
	@$(STEP) newest-kernel tests/kernels/newest.sh

# Where nothing is installed yet: `make demo` and `make test`, or STEPS. Only the toolchain is this machine's.
RELEASES ?= bookworm trixie forky
test-fresh: setup-fresh
	@STEPS='$(STEPS)' $(STEP) test-fresh tests/fresh.sh $(RELEASES)

bench: setup-build
	@$(STEP) bench $(CARGO) bench --workspace --locked --bench '*'

deny:
	@$(STEP) deny tests/deny.sh

fuzz: setup-test
	@$(STEP) fuzz tests/fuzz/run.sh $(or $(MINUTES),10) $(TARGETS)
