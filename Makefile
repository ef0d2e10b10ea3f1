# Names for the commands of this repository. The commands also work without make.

REGISTRY ?= registry/local/kai-scheduler
NAME ?= kai
# Version of the program, the image and the chart, for instance 1.2.3. Without it: that of the workspace, and 0.0.0.
VERSION ?=
override VERSION := $(VERSION:v%=%)
TAG ?= $(or $(VERSION),0.0.0)
IMAGE ?= $(REGISTRY)/$(NAME):$(TAG)
# amd64, arm64, or both.
ARCHITECTURES ?= amd64 arm64
ARCHIVE ?= target/kai-image.tar
SBOM ?= target/kai.cdx.json
CHARTS ?= charts
CHART = $(CHARTS)/kai-scheduler-$(TAG).tgz
RELEASE ?= target/release-files
HELM ?= helm
# Paths of the programs for the release files; `make build` leaves them there.
PROGRAMS ?= $(foreach each,$(ARCHITECTURES),$(shell deploy/image/program --path $(each)))

ifneq ($(VERSION),)
# The program takes its version from it.
export KAI_VERSION := $(VERSION)
endif
export HELM

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | awk -F'\t' '{ printf "%-14s %s\n", $$1, $$2 }'

.PHONY: build
build: image sbom ## build the program, its image and its bill of materials

.PHONY: program
program: ## build the program for this machine, target/release/kai
	cargo build --release --bin kai

.PHONY: image
image: ## write the image to target/kai-image.tar, and load it into Docker if it runs
	deploy/image/build $(IMAGE) $(ARCHIVE) $$(for each in $(ARCHITECTURES); do deploy/image/program $$each || exit; done)
	deploy/image/check $(ARCHIVE) $(ARCHITECTURES)
	deploy/image/load $(ARCHIVE)

.PHONY: sbom
sbom: ## write the bill of materials (CycloneDX) to target/kai.cdx.json
	deploy/image/sbom $(SBOM)

.PHONY: deploy
deploy: ## build the image for this machine, import it into k3s, and install the chart
	deploy/k3s

.PHONY: chart
chart: ## pack the chart into ./charts
	deploy/release/chart $$(deploy/release/version $(TAG)) $(REGISTRY) $(CHARTS)

.PHONY: release-check
release-check: ## check that VERSION can be released
	deploy/release/check "$(VERSION)"

.PHONY: release-files
release-files: ## collect what `make build chart` wrote in target/release-files, with checksums
	deploy/release/files $$(deploy/release/version $(TAG)) $(RELEASE) $(ARCHIVE) $(SBOM) $(CHART) $(PROGRAMS)

.PHONY: release-notes
release-notes: ## print the changelog of VERSION
	@deploy/release/notes $(or $(VERSION),Unreleased)

.PHONY: release-push
release-push: ## push image and chart to REGISTRY
	@deploy/release/push $$(deploy/release/version $(TAG)) $(REGISTRY) $(RELEASE)

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
