# `make` alone says what there is.

GO      ?= go
# The race detector needs cgo and a C compiler; without one the tests run without it.
RACE    := $(shell command -v $${CC:-cc} >/dev/null 2>&1 && echo -race)
CACHE   := $(HOME)/.cache/tidemill
ROUNDS  ?= 1000
SEED    ?= 1
CHAOS   ?= Chaos
MINUTES ?= 60
POINTS  ?= all
FUZZTIME ?= 60s
IMAGE   ?= dev.local/tidemill:v1

.DEFAULT_GOAL := help
.PHONY: help demo up test lint test-real test-examples bench bench-smoke loadtest chaos soak soak-scorers crash fuzz build image onnxruntime clean cluster test-cluster bench-cluster

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## start everything in this process, publish events, see them arrive
	@$(GO) run ./cmd/tidemill demo

up: ## run the laptop's Tidemill in .tidemill until Ctrl-C
	@$(GO) run ./cmd/tidemill up

cluster: ## a real Kubernetes with Knative in a sandbox until Ctrl-C, as root on Linux; then: export KUBECONFIG=/var/tmp/tidemill-cluster/tidemill/kubeconfig
	@$(GO) run -C e2e/cluster . up --name tidemill --gpus 2

# The race detector has each process sleep for a second before its end, and ours
# start hundreds. The domain starts no goroutine, which imports_test.go holds it to,
# and its properties are eight times as dear with it. What vet says is lint's to say.
test: ## unit tests and tests against the embedded servers; needs only Go
	@GO=$(GO) ./.ci/helm-install >/dev/null # which takes minutes the first time, and no test has them
	$(GO) test -vet=off -timeout 30m .
	GORACE="atexit_sleep_ms=50 $(GORACE)" $(GO) test $(RACE) -vet=off -timeout 30m $$($(GO) list ./... | grep -v '^tidemill.dev$$')

lint: ## gofmt, go vet, staticcheck
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
	  test -z "$$unformatted" || { echo "run gofmt on:"; echo "$$unformatted"; exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags real,torch,cluster ./...
	$(GO) tool staticcheck -tags real,torch,cluster ./...
	cd loadtest/franz && GOWORK=off $(GO) vet ./...
	cd e2e/cluster && GOWORK=off CGO_ENABLED=0 $(GO) vet -trimpath . ./internal/... ./pause ./probe

test-real: ## the same suite against a real Apache Kafka and Redis, which it installs and starts
	./.ci/real-servers-install
	TIDEMILL_ONNXRUNTIME=$$(./.ci/onnxruntime-install) && export TIDEMILL_ONNXRUNTIME && \
	  $(GO) test $(RACE) -tags real -run '^TestReal' -timeout 30m -count=1 ./broker/... ./internal/... ./e2e/... ./cmd/... ./examples/... ./image

test-cluster: ## all of it by the chart in a real Kubernetes with Knative, which it brings up, as root on Linux; with KUBECONFIG in that one; RUN=TestFromZero for some
	./.ci/real-servers-install
	./.ci/helm-install
	test -n "$$KUBECONFIG" || $(GO) run -C e2e/cluster . build
	test -n "$${KUBECONFIG}$(RUN)" || (cd e2e/cluster && GOWORK=off CGO_ENABLED=0 $(GO) test -trimpath ./internal/... ./ingress) # of the sandbox itself
	$(GO) test -tags cluster -run '$(or $(RUN),.)' $(if $(RUN),,-skip TestBars) -timeout 60m -count=1 -v ./e2e/kube

bench-cluster: ## what a cluster takes from an event to its Job, from a promotion to its score, and at rest, beside its floors
	$(MAKE) test-cluster RUN=TestBars

test-examples: ## the PyTorch trainer, in a virtual environment that is made here the first time: up to 6 GB
	TIDEMILL_TORCH=$$(./.ci/torch-install) && export TIDEMILL_TORCH && \
	  $(GO) test -tags torch -run '^TestTorch' -timeout 20m -count=1 ./examples/...

bench: ## our client beside franz-go's, the door and triggers beside bare net/http, runs beside bare processes, scorers beside their ceiling; prints the bars
	$(GO) run ./loadtest

bench-smoke: ## a short bench that fails only if something breaks
	$(GO) run ./loadtest -smoke

loadtest: ## scorers beside their ceiling, plain Go and Python, as docs/loadtest.md says; SCENARIO=bots,swap for some; writes bin/loadtest.json and .svg
	@mkdir -p bin
	@TIDEMILL_ONNXRUNTIME=$${TIDEMILL_ONNXRUNTIME:-$$(./.ci/onnxruntime-install)} $(GO) run ./loadtest score -python -json bin/loadtest.json -svg bin/loadtest.svg $(if $(SCENARIO),-scenario $(SCENARIO))

chaos: ## ten rounds each with fixed seeds: kill publishers, consumers, gateways, dispatchers, scorers and the broker; and ten points of make crash
	$(GO) test -count=1 -timeout 40m -v -run $(CHAOS) ./e2e/chaos
ifeq ($(CHAOS),Chaos)
	$(GO) test -count=1 -timeout 40m -v -run TestCrash ./e2e/crash
endif

soak: ## many rounds of chaos; ROUNDS=1000 SEED=1 CHAOS=ChaosOfTriggers
	TIDEMILL_CHAOS_ROUNDS=$(ROUNDS) TIDEMILL_CHAOS_SEED=$(SEED) $(GO) test -count=1 -timeout 0 -v -run $(CHAOS) ./e2e/chaos

soak-scorers: ## scorers under load and changing champions, nobody killed: memory, files and lag stay flat; MINUTES=60
	TIDEMILL_SOAK_MINUTES=$(MINUTES) $(GO) test -count=1 -timeout 0 -v -run TestSoakOfScorers ./e2e/chaos

crash: ## stop a tidemill, and flush its Redis, before and after each write from two events to their runs' ends; POINTS=50 SEED=2 for some
	TIDEMILL_CRASH_POINTS=$(POINTS) TIDEMILL_CHAOS_SEED=$(SEED) $(GO) test -count=1 -timeout 0 -v -run TestCrash ./e2e/crash

fuzz: ## run every fuzz target for FUZZTIME (60s)
	@set -e; for pkg in $$($(GO) list ./...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$pkg | grep ^Fuzz); do \
	    echo "$$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1s $$pkg; \
	  done; done

# gRPC's tracing pages hold templates, which call methods by names that are made
# up as they run: with them the linker keeps every method of every type, 18 MB.
build: ## bin/tidemill
	CGO_ENABLED=0 $(GO) build -trimpath -tags grpcnotrace -ldflags='-s -w' -o bin/tidemill ./cmd/tidemill

image: ## bin/tidemill-image.tar, an OCI image for containerd, Docker and Podman, built without any of them; on Debian or Ubuntu; IMAGE=registry.example/tidemill:v1
	$(GO) run ./image -name $(IMAGE) -o bin/tidemill-image.tar

onnxruntime: ## fetch ONNX Runtime for the models that our own engine does not take, beside bin/tidemill; Linux, x86-64 or arm64
	@mkdir -p bin
	@library=$$(./.ci/onnxruntime-install) && cp $$library bin/libonnxruntime.so.part && mv bin/libonnxruntime.so.part bin/libonnxruntime.so && \
	  echo "bin/tidemill finds bin/libonnxruntime.so; for others: export TIDEMILL_ONNXRUNTIME=$$library"

clean: ## remove what was built here
	rm -rf bin
