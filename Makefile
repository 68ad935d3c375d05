# One name for each thing a contributor does; `make help` lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# golangci-lint and its many dependencies are kept out of the main module.
GOLANGCI_LINT := go tool -modfile=hack/tools/go.mod golangci-lint
CONTROLLER_GEN := go tool controller-gen

# Packages below test/ start whole clusters. TEST_PARALLEL of them run at a
# time, so that a machine with two cores still meets the tests' deadlines.
# test/argocd, which needs Argo CD, has a target of its own.
CLUSTER_PACKAGES = $$(go list ./test/... | grep -v '/test/argocd$$')
TEST_PARALLEL ?= 1
TEST_TIMEOUT ?= 30m
# Further arguments for `go test`, as in: make test-unit TESTARGS='-run TestVerdict -v'
TESTARGS ?=
# How often each job of the soak test is evicted and readmitted, and how often the hub's managers are killed.
ROUNDS ?= 200
KILLS ?= 100
# Images are $(REGISTRY)/dispatch-manager:$(TAG) and $(REGISTRY)/dispatch-admission:$(TAG).
REGISTRY ?= ghcr.io/dispatch-dev
TAG ?= latest
CONTAINER_TOOL ?= docker
PLATFORMS ?= linux/amd64,linux/arm64
KUBECTL ?= kubectl
# Arguments for the demo, as in: make demo ARGS=--once
ARGS ?=

##@ General

.PHONY: help
help: ## List the targets.
	@awk -F ':.*## ' \
		'/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		 /^[a-z][a-z-]*:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Development

.PHONY: generate
generate: ## Generate the DeepCopy methods of the API types.
	$(CONTROLLER_GEN) object:headerFile=hack/boilerplate.go.txt paths=./api/...

.PHONY: manifests
manifests: ## Generate the CustomResourceDefinitions in config/crd/bases.
	$(CONTROLLER_GEN) crd paths=./api/... output:crd:artifacts:config=config/crd/bases
	hack/argocd-cm-patch.sh > config/argocd/argocd-cm-patch.yaml

.PHONY: fmt
fmt: ## Format the code as the linter wants it.
	$(GOLANGCI_LINT) fmt

.PHONY: vet
vet: ## Run go vet.
	go vet ./...

.PHONY: lint
lint: ## Run golangci-lint.
	$(GOLANGCI_LINT) run

.PHONY: verify
verify: generate manifests ## Fail where committed generated files, or go.mod, are stale.
	go mod tidy -diff
	@stale=$$(git status --porcelain -- api config/crd config/argocd); \
	if [[ -n $$stale ]]; then \
		printf 'stale; run "make generate manifests" and commit:\n%s\n' "$$stale" >&2; \
		git --no-pager diff -- api config/crd config/argocd >&2; \
		exit 1; \
	fi

##@ Build

.PHONY: build
build: ## Build both processes into bin/.
	go build -trimpath -o bin/ ./cmd/...

.PHONY: clean
clean: ## Remove what build left in the checkout; built cluster binaries stay cached.
	rm -rf bin dist

##@ Install

.PHONY: docker-build
docker-build: ## Build both images for this machine; REGISTRY and TAG name them.
	for program in dispatch-manager dispatch-admission; do \
		$(CONTAINER_TOOL) build --target $$program -t $(REGISTRY)/$$program:$(TAG) .; \
	done

.PHONY: docker-push
docker-push: ## Build both images for all PLATFORMS and push them; needs docker's buildx.
	for program in dispatch-manager dispatch-admission; do \
		$(CONTAINER_TOOL) buildx build --platform $(PLATFORMS) --target $$program -t $(REGISTRY)/$$program:$(TAG) --push .; \
	done

.PHONY: build-installer
build-installer: ## Write dist/install-*.yaml, for a hub, a target and both in one; REGISTRY and TAG name the images.
	@mkdir -p dist
	@render() { $(KUBECTL) kustomize $$1 | sed 's|image: \(dispatch-[a-z]*\):latest$$|image: $(REGISTRY)/\1:$(TAG)|'; }; \
	render config/default > dist/install-hub.yaml; \
	{ render config/admission; echo ---; render config/target-access; } > dist/install-target.yaml; \
	render config/single-cluster > dist/install-single-cluster.yaml

##@ Test

.PHONY: cluster
cluster: ## Build the binaries of the test cluster; minutes the first time, cached afterwards.
	go run ./test/controlplane/cmd/build

.PHONY: test
test: test-unit test-cluster ## Run every test: unit, envtest and e2e.

.PHONY: test-unit
test-unit: cluster ## Run the tests beside the code, those against a bare API server included.
	go test -timeout $(TEST_TIMEOUT) $(TESTARGS) $$(go list ./... | grep -v /test/)

.PHONY: test-cluster
test-cluster: cluster ## Run the tests that start whole clusters.
	go run ./test/controlplane/cmd/build promtool
	go test -timeout $(TEST_TIMEOUT) -p $(TEST_PARALLEL) $(TESTARGS) $(CLUSTER_PACKAGES)

.PHONY: test-argocd
test-argocd: cluster ## Run a real Argo CD over a git repository of DispatchTargets; minutes the first time.
	go run ./test/controlplane/cmd/build argocd
	go test -timeout $(TEST_TIMEOUT) $(TESTARGS) ./test/argocd

.PHONY: soak
soak: cluster ## Evict, readmit, send and cancel jobs under crashes for a long time; ROUNDS and KILLS say how long.
	go test -timeout 0 -count 1 -v ./test/soak -rounds $(ROUNDS)
	go test -timeout 0 -count 1 -v ./test/soak/dispatchjob -kills $(KILLS) -jobs 50

.PHONY: bench
bench: cluster ## Run the benchmarks.
	go test -timeout $(TEST_TIMEOUT) -p 1 -run '^$$' -bench . $(TESTARGS) ./...

##@ Demo

.PHONY: demo
demo: cluster ## Show the gate at work on two real clusters; ARGS=--once exits when it is done.
	go run ./test/demo $(ARGS)
