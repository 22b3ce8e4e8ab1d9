# Each target sets up what it needs. `make demo` shows what frontdesk does; `make check` runs the tests that
# need Rust only, `make test` all.

SCENARIO ?= scenarios/echo-mixed.toml
ARGS ?=

guest_target := x86_64-unknown-linux-gnu
# What `build` compiles. Before the tests it is all that they need, too: with the features that tests have,
# other crates would be compiled twice.
selection := -p frontdesk -p frontdesk-tcg-plugin
test: selection := --workspace --lib --bins --tests
package := target/release/package
crt_static := CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-C target-feature=+crt-static"

.PHONY: demo check test nightly bench fuzz miri lint build deb
.PHONY: setup-build setup-lint setup-vms setup-deb setup-sim setup-python

demo: setup-vms build
	mkdir -p target/demo
	target/release/frontdesk lab $(SCENARIO) --json target/demo/result.json --html target/demo/report.html \
		--trace target/demo/trace.json --svg target/demo/response.svg $(ARGS); \
	status=$$?; \
	if [ $$status -le 1 ]; then echo "Report: target/demo/report.html    Trace for ui.perfetto.dev: target/demo/trace.json"; fi; \
	exit $$status

# Rust only: no root, no QEMU, no clang.
check:
	cargo fmt --all --check
	FRONTDESK_ALLOW_MISSING=simso cargo test --release --locked -p frontdesk-capacity -p frontdesk-control-protocol -p frontdesk-engine -p frontdesk-record -p frontdesk-remote \
		-p frontdesk-replay -p frontdesk-report -p frontdesk-scenario -p frontdesk-sim -p frontdesk-sweep

# One failure does not hide what comes after it. What a test needs and this machine lacks is a failure, too,
# unless it may be missing: FRONTDESK_ALLOW_MISSING="kvm vhost-net" make test. It ends with what did not run.
test: setup-vms setup-sim setup-python deb
	tools/test.sh

bench: setup-vms setup-sim setup-python build
	cargo bench --locked -p frontdesk-engine --bench engine
	cargo bench --locked -p frontdesk-engine --bench scale
	cargo bench --locked -p frontdesk-replay --bench replay
	cargo bench --locked -p frontdesk-sim --bench speed
	cargo bench --locked -p frontdesk-sim --bench scale
	cargo bench --locked -p frontdesk-sim --bench simso
	cargo bench --locked -p frontdesk-sim --bench kernel
	cargo bench --locked -p frontdesk-sweep --bench speed
	cargo bench --locked -p frontdesk-disk --bench backend
	target/python/bin/python3 -m pip install --quiet .
	target/python/bin/python3 crates/python/benches/speed.py

# Every parser of what guests, sockets and files say, fed with rubbish: a little of it in `make test`, CASES
# times here, and then, with nightly Rust and cargo-fuzz, for SECONDS each what finds new ways through the code.
CASES ?= 200000
SECONDS ?= 60
fuzz: setup-build
	PROPTEST_CASES=$(CASES) cargo test --release --locked -p frontdesk-control-protocol -p frontdesk-disk -p frontdesk-disk-protocol -p frontdesk-engine \
		-p frontdesk-guardian -p frontdesk-guest-protocol -p frontdesk-host -p frontdesk-lab-guest -p frontdesk-linux -p frontdesk-probes -p frontdesk-qemu -p frontdesk-record \
		-p frontdesk-remote -p frontdesk-ring -p frontdesk-sim -p frontdesk-tcg-plugin --lib --bins --test properties --test disk fuzz_
	tools/fuzz.sh $(SECONDS)

# What takes too long for each change: the trials inside VMs on other kernels, on control groups of version 2 and
# beside libvirt, a launch in an episode, a thousand kills, what attacks cost, a hundred VMs under systemd, disks
# whose back end or VM is killed a hundred times, and pip. Hours.
nights := host host_kvm host_scx host_v2 libvirt package e2e desktop vm pytest
nightly: setup-vms setup-python deb
	cargo test --release --workspace --locked --no-fail-fast $(nights:%=--test %) -- --ignored --nocapture --skip response_times

# The code that reads and decides, interpreted, with every access to memory checked.
miri:
	tools/miri.sh

# In the profile of the tests, so that what compiles others is compiled once for both.
lint: setup-lint
	cargo fmt --all --check
	cargo deny --locked check licenses bans sources
	cargo clippy --release --workspace --all-targets --locked -- -D warnings
	cargo test --release --locked --workspace --test circles --test comments --test crates

# The program, the QEMU plugin, and the static binaries that run inside VMs: lab VMs, and those of users.
build: setup-build
	cargo build --release --locked $(selection)
	$(crt_static) cargo build --release --locked --target $(guest_target) -p frontdesk-lab-guest -p frontdesk-guest

# The Debian package, target/debian/frontdesk_VERSION_amd64.deb, with manual pages and completions from the
# program itself.
deb: setup-deb build
	rm -rf $(package)
	mkdir -p $(package)/man $(package)/guest
	strip -o $(package)/guest/frontdesk-guest target/$(guest_target)/release/frontdesk-guest
	target/release/frontdesk manual $(package)/man
	gzip -9n $(package)/man/*
	for shell in bash zsh fish; do target/release/frontdesk completions $$shell >$(package)/frontdesk.$$shell || exit; done
	cargo deb --locked -p frontdesk --no-build --strip

setup-build:
	@tools/setup.sh build

setup-vms:
	@tools/setup.sh vms

setup-lint:
	@tools/setup.sh lint

setup-deb:
	@tools/setup.sh deb

setup-sim:
	@tools/setup.sh sim

setup-python:
	@tools/setup.sh python
