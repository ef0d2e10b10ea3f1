# Names for the commands of this repository. The commands also work without make.

IMAGE ?= registry/local/kai-scheduler/kai:0.0.0
ARCHIVE ?= target/kai-image.tar

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | awk -F'\t' '{ printf "%-12s %s\n", $$1, $$2 }'

.PHONY: build
build: ## build the program, target/release/kai
	cargo build --release --bin kai

.PHONY: playground
playground: ## run a whole cluster in one process
	cargo run --release -- playground

.PHONY: test
test: ## run all tests that need no other programs
	cargo test --workspace

.PHONY: lint
lint: ## check formatting, lints and documentation
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

.PHONY: image
image: build ## write the container image to target/kai-image.tar, without Docker
	deploy/image/build target/release/kai $(IMAGE) $(ARCHIVE)

.PHONY: e2e
e2e: ## run the end-to-end scenarios on a real kube-apiserver, then on a real kubelet and containerd
	.ci/kube
	.ci/node

.PHONY: faults
faults: ## run a thousand random clusters with injected faults
	.ci/faults

.PHONY: bench
bench: ## measure the whole system on a real kube-apiserver
	.ci/bench

.PHONY: ci
ci: ## run all checks that a change has to pass
	.ci/run
