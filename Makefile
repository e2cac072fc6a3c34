# The user commands. `make demo` demonstrates the gateway, and `make test` runs every test. Both first install missing
# packages (Debian packages, as root) and leave nothing else behind. This file only calls the scripts in
# deploy/scripts/.

CARGO ?= cargo
# The duration of fuzzing in seconds: long by default, short inside `make test`.
FUZZ_SECONDS ?= 600
# The processes that fuzz: one for each core.
FUZZ_PROCESSES ?= $(shell nproc)
# The tests that `make floods` runs: all, or one of table, named, rate, cookies, rolling.
FLOODS ?=
# The duration of `make soak` in seconds.
SOAK_SECONDS ?= 3600
export CARGO

.PHONY: help setup tools build release deb deb-test image image-test man demo lint test test-apiserver conformance without-dpdk vm-test \
  floods kube-proxy fuzz bench perf soak instructions compare deny advisories clean

help:
	@echo 'make demo     build in release, run real clients against real servers in every mode; DEMO_ARGS=--fleet or --keep'
	@echo 'make test     every test, including DPDK, namespaces, loom and a short fuzz run (root)'
	@echo 'make setup    install missing packages: DPDK, clang, nginx, iperf3 ... (Debian 12, root)'
	@echo 'make build    debug build'
	@echo 'make release  the gateway and the kubectl plugin in target/install, with separate debug symbols'
	@echo 'make deb      Debian packages of both in target/deb (Debian 12, network the first time)'
	@echo 'make deb-test install, start, upgrade, roll back and remove these packages in a fresh Debian 12 (root, network, minutes)'
	@echo 'make image    the image as an OCI archive in target/image, without a container engine (root, Debian mirror)'
	@echo 'make image-test  build it twice, compare the two, and run its programs (root, Debian mirror, minutes)'
	@echo 'make man      man pages in target/man'
	@echo 'make lint     rustfmt and clippy with warnings as errors'
	@echo 'make kube-proxy  target node with the real kube-proxy (root, network the first time, minutes)'
	@echo 'make test-apiserver  the Kubernetes tests with a real API server (root, network the first time, 10 min)'
	@echo 'make conformance  the conformance suite of the Gateway API, GATEWAY-TCP and GATEWAY-UDP (root, network the first time, minutes)'
	@echo 'make without-dpdk  the kubectl plugin and cargo test in a root without libdpdk (root, network, minutes)'
	@echo 'make tools    build that API server: kube-apiserver, kube-controller-manager, etcd, kubectl and helm (network, minutes)'
	@echo 'make vm-test  emulated PCI NICs with their DPDK drivers, in virtual machines (root, minutes); NICS="virtio e1000e vmxnet3"'
	@echo 'make floods   the effect of floods on other clients, 30 s for each mode and flood (root, half an hour): docs/floods.md'
	@echo 'make fuzz     FUZZ_SECONDS=$(FUZZ_SECONDS) s of arbitrary frames for the pipeline, on every core'
	@echo 'make bench    ns and instructions per packet, the control plane at 10,000 Services, micro-benches'
	@echo 'make perf     throughput and latency beside testpmd and the kernel (root, 40 min); SCENARIOS=..., ROUNDS=N'
	@echo 'make soak     SOAK_SECONDS=$(SOAK_SECONDS) at full rate while backends change every second (root)'
	@echo 'make instructions  instructions per packet against the record; INSTRUCTIONS=--record updates the record'
	@echo 'make compare A=COMMIT [B=COMMIT] [SCENARIOS=...]  instructions and ns per packet of two commits, alternating'
	@echo 'make deny     licences and bans of the dependencies (needs cargo-deny)'
	@echo 'make advisories  known vulnerabilities of the dependencies (needs cargo-deny, and GitHub for the RustSec database)'

setup:
	@deploy/scripts/setup.sh

tools:
	@deploy/scripts/tools.sh

build:
	$(CARGO) build --workspace --locked

release:
	@deploy/scripts/release.sh

image:
	@deploy/scripts/image.sh

image-test:
	@deploy/scripts/image.sh test

deb:
	@deploy/scripts/deb.sh

deb-test: deb
	@deploy/scripts/deb-test.sh

man:
	$(CARGO) run -p tidegate --locked -- man --dir target/man

demo: setup
	@$(CARGO) build --release -p tidegate -p tidegate-netlab --locked
	@deploy/scripts/hugepages.sh run 192 target/release/tidegate-demo $(DEMO_ARGS)

lint:
	deploy/scripts/words.sh
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy --workspace --test e2e --test edge --test kubernetes --locked -- -D warnings

test: setup
	@deploy/scripts/test.sh

test-apiserver: setup
	@deploy/scripts/test-apiserver.sh

conformance: setup
	@deploy/scripts/conformance.sh

vm-test: setup
	@deploy/vm/test.sh

floods: setup
	TIDEGATE_FLOODS=long $(CARGO) test --release --workspace --test e2e --locked -- --nocapture \
	  $(or $(FLOODS:%=%::),floods:: rolling:: bgp::flood::)

without-dpdk:
	@deploy/scripts/without-dpdk.sh

kube-proxy: setup
	@deploy/scripts/kube-proxy.sh

fuzz:
	@deploy/scripts/fuzz.sh $(FUZZ_SECONDS) $(FUZZ_PROCESSES)

bench: setup
	@deploy/scripts/bench.sh

perf: setup
	@benches/perf.sh $(SCENARIOS)

soak: setup
	@$(CARGO) build --release --locked -q -p tidegate -p tidegate-bench
	@deploy/scripts/hugepages.sh run 300 target/release/tidegate-bench soak $(or $(SCENARIOS),soak) \
	  --seconds $(SOAK_SECONDS)

instructions: setup
	@benches/instructions.sh $(INSTRUCTIONS)

compare: setup
	@benches/compare.sh $(A) $(B) $(SCENARIOS)

deny:
	$(CARGO) deny --offline check bans licenses sources

# Not a part of `make deny` or CI, because a machine without GitHub cannot have the database.
advisories:
	$(CARGO) deny check advisories

clean:
	$(CARGO) clean
