# `make` alone lists the targets.

GO      ?= go
# The race detector needs cgo and a C compiler. Without them the tests run without it.
RACE    := $(shell command -v $${CC:-cc} >/dev/null 2>&1 && echo CGO_ENABLED=1)
# All else is compiled as make build compiles, so that no package is compiled twice.
FLAGS   := -trimpath -gcflags=all=-dwarf=false
export GOFLAGS := $(strip $(FLAGS) $(filter-out $(FLAGS),$(shell $(GO) env GOFLAGS 2>/dev/null)))
export CGO_ENABLED := 0
CACHE   := $(HOME)/.cache/tidemill
ROUNDS  ?= 1000
SEED    ?= 1
CHAOS   ?= Chaos
MINUTES ?= 60
POINTS  ?= all
FUZZTIME ?= 60s
IMAGE   ?= dev.local/tidemill:v1

.DEFAULT_GOAL := help
.PHONY: help demo up test test-racing test-calm test-all whole-racing lint vulncheck tidy test-real test-python test-examples bench bench-smoke loadtest chaos sim sim-faults soak soak-scorers crash attacks fuzz build image sbom release man onnxruntime clean cluster test-cluster bench-cluster dashboard

# Rigs are modules of their own, so that their dependencies stay out of the product.
RIGS    := loadtest image e2e/kube e2e/browser charts/grafana
# The race detector makes each process sleep for a second before it ends, and the
# tests start hundreds. go vet is part of make lint.
RACING  := $(RACE) GORACE="atexit_sleep_ms=50 $(GORACE)" $(GO) test $(if $(RACE),-race) -vet=off -timeout 30m
CALM    := $(GO) test -vet=off -timeout 30m

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: build ## run the demo: events, dead letters, a model for each of three bots, a scored stream
	@bin/tidemill demo

up: build ## run Tidemill on this machine, in .tidemill, until Ctrl-C
	@bin/tidemill up

cluster: ## run a real Kubernetes with Knative in a sandbox until Ctrl-C, as root on Linux; then: export KUBECONFIG=/var/tmp/tidemill-cluster/tidemill/kubeconfig
	@$(GO) run -C e2e/cluster . up --name tidemill --gpus 2

# The race detector watches packages that start goroutines or hold locks; see
# .ci/packages. The others are several times quicker without it.
test: ## run unit tests and suites on embedded servers; needs only Go
	@$(MAKE) --no-print-directory -j2 test-racing test-calm

test-racing:
	$(RACING) -p 4 $$(./.ci/packages racing)

# Half of these tests wait more than they compute, so both run side by side.
test-calm:
	$(CALM) -p 2 $$(./.ci/packages calm$(if $(LATER), | grep -v '/$(LATER)$$'))

test-all: ## run what make test leaves out: guides, documents, the chart, proofs of scale, chaos, crash points, the rigs' own tests
	@GO=$(GO) ./.ci/helm-install >/dev/null
	$(CALM) -tags slow -run "$$(./.ci/packages tests slow)" $$(./.ci/packages slow | grep -v ^./e2e)
	set -e; for rig in $(RIGS); do echo "in $$rig:"; (cd $$rig && GOWORK=off $(CALM) ./...); done
	$(MAKE) -j2 -O chaos attacks whole-racing

# Chaos and attacks wait more than they compute, so test-all runs them side by side.
whole-racing:
	$(RACING) ./internal/cli
	$(RACING) -tags slow ./e2e/crash

lint: ## run gofmt, go vet and staticcheck, and check for plain English
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
	  test -z "$$unformatted" || { echo "run gofmt on:"; echo "$$unformatted"; exit 1; }
	$(GO) vet -tags real,torch,slow,templates,pipelines ./...
	$(GO) build -o bin/staticcheck honnef.co/go/tools/cmd/staticcheck
	bin/staticcheck -tags real,torch,slow,templates,pipelines ./...
	set -e; for rig in $(RIGS); do echo "in $$rig:"; (cd $$rig && export GOWORK=off && $(GO) vet -tags real,cluster ./... && $(CURDIR)/bin/staticcheck -tags real,cluster ./...); done
	$(GO) test ./.ci/prose
	$(GO) run ./.ci/prose
	cd e2e/cluster && GOWORK=off $(GO) vet . ./internal/... ./pause ./probe

vulncheck: ## look for known vulnerabilities in the code that is called; needs vuln.go.dev in reach
	$(GO) run golang.org/x/vuln/cmd/govulncheck@v1.9.0 ./...
	set -e; for rig in $(RIGS); do echo "in $$rig:"; (cd $$rig && GOWORK=off $(GO) run golang.org/x/vuln/cmd/govulncheck@v1.9.0 ./...); done

tidy: ## bring go.mod and go.sum of the product and of the rigs up to date
	$(GO) mod tidy
	set -e; for rig in $(RIGS); do (cd $$rig && GOWORK=off $(GO) mod tidy); done

test-real: ## run the suites on a real Apache Kafka, Redis and S3, with clients of other languages, and the dashboard in Chromium; installs what is missing, as root
	./.ci/real-servers-install
	TIDEMILL_ONNXRUNTIME=$$(./.ci/onnxruntime-install) && export TIDEMILL_ONNXRUNTIME && \
	  $(RACING) -p 3 -tags real -run '^TestReal' -count=1 $$(./.ci/packages real) && \
	  (cd image && GOWORK=off $(CALM) -tags real -run '^TestReal' -count=1 .) && \
	  cd e2e/browser && GOWORK=off $(CALM) -tags real -run '^TestReal' -count=1 .

test-python: build ## test the Python package from a wheel, on each Python from 3.9 to 3.13 that is here, with scikit-learn and boosting libraries, and a notebook; follow docs/tabular.md
	@./.ci/python-test standard
	TEST_ONNXRUNTIME=$$(./.ci/onnxruntime-install) && export TEST_ONNXRUNTIME && \
	  PIP_NO_COMPILE=1 $(CALM) -tags slow,templates -run '^TestTemplateTabularIsFollowed$$' -count=1 ./internal/cli

test-cluster: ## run Tidemill by its chart in a real Kubernetes with Knative, which is built the first time; as root on Linux; KUBECONFIG for another cluster, RUN=TestFromZero for some tests
	./.ci/real-servers-install
	./.ci/helm-install
	test -n "$$KUBECONFIG" || $(GO) run -C e2e/cluster . build
	test -n "$${KUBECONFIG}$(RUN)" || (cd e2e/cluster && GOWORK=off $(GO) test ./internal/... ./ingress) # of the sandbox itself
	cd e2e/kube && GOWORK=off $(GO) test -tags cluster -run '$(or $(RUN),.)' $(if $(RUN),,-skip TestBars) -timeout 60m -count=1 -v .

bench-cluster: ## measure a cluster beside its floors: from an event to its Job, from a promotion to its score, and at rest
	$(MAKE) test-cluster RUN=TestBars

test-examples: build ## test the other templates of init, the PyTorch trainer, and the Python package with LightGBM, XGBoost, CatBoost, PyTorch and TensorFlow, in environments that are made the first time: up to 9 GB
	TEST_ONNXRUNTIME=$$(./.ci/onnxruntime-install) && TEST_TORCH=$$(./.ci/torch-install) && export TEST_ONNXRUNTIME TEST_TORCH && \
	  $(GO) test -tags slow,templates -run '^TestTemplate' -skip '^TestTemplateTabularIsFollowed$$' -timeout 30m -count=1 ./internal/cli
	TIDEMILL_TORCH=$$(./.ci/torch-install) && export TIDEMILL_TORCH && \
	  $(GO) test -tags torch -run '^TestTorch' -timeout 20m -count=1 ./examples/...
	@./.ci/python-test libraries

bench: ## measure our client beside franz-go's, the gateway and triggers beside bare net/http, runs beside bare processes, scorers beside their ceiling
	$(GO) run -C loadtest .

bench-smoke: ## run a short bench that fails only if something breaks
	$(GO) run -C loadtest . -smoke

loadtest: ## measure scorers beside their ceiling, plain Go, Python, and peers such as Kafka Streams; SCENARIO=bots,swap for some; writes bin/loadtest.json and .svg
	@mkdir -p bin
	@TIDEMILL_ONNXRUNTIME=$${TIDEMILL_ONNXRUNTIME:-$$(./.ci/onnxruntime-install)} $(GO) run -C loadtest . score -fetch $(if $(BESIDE),-beside $(BESIDE)) -json $(CURDIR)/bin/loadtest.json -svg $(CURDIR)/bin/loadtest.svg $(if $(SCENARIO),-scenario $(SCENARIO))

sim: ## run worlds in virtual time: SEEDS=n for many, FIRST=61 for others than make test, FOR=6m limits the time, SEED=n TIMES=50 for one of them again and again; CLOCKS=1 lets the clocks of processes jump
	nice -n 19 $(CALM) $(if $(CLOCKS),-overlay $$($(GO) run ./e2e/sim/clock/overlay bin/clocks)) -timeout 12h -count=1 -v -run '^TestWorlds$$' ./e2e/sim -sim.first=$(if $(filter command,$(origin SEED)),$(SEED),$(or $(FIRST),1)) -sim.seeds=$(if $(filter command,$(origin SEED)),1,$(or $(SEEDS),60)) -sim.times=$(or $(TIMES),1) -sim.for=$(or $(FOR),0) $(if $(CLOCKS),-sim.faults=clock)

sim-faults: ## put each fault of e2e/sim/testdata/faults back and count the seeds until a world fails: SEEDS=2000, NAME=one of them
	@GO=$(GO) ./.ci/sim-faults $(or $(SEEDS),2000) $(NAME)

chaos: ## play five or six rounds each with fixed seeds that kill publishers, consumers, gateways, dispatchers, scorers and the broker; and ten points of make crash
	$(CALM) -tags slow -count=1 -v -run '$(CHAOS)' ./e2e/chaos
ifeq ($(CHAOS),Chaos)
	$(CALM) -tags slow -count=1 -v -run TestCrash ./e2e/crash
endif

soak: ## play many rounds of chaos; ROUNDS=1000 SEED=1 CHAOS=ChaosOfTriggers
	TIDEMILL_CHAOS_ROUNDS=$(ROUNDS) TIDEMILL_CHAOS_SEED=$(SEED) $(GO) test -tags slow -count=1 -timeout 0 -v -run '$(CHAOS)' ./e2e/chaos

soak-scorers: ## run scorers under load while champions change, and check that memory, files and lag stay flat; MINUTES=60
	TIDEMILL_SOAK_MINUTES=$(MINUTES) $(GO) test -count=1 -timeout 0 -v -run TestSoakOfScorers ./e2e/chaos

crash: ## stop a tidemill, and flush its Redis, before and after each write from two events to their runs' ends; POINTS=50 SEED=2 for some
	TIDEMILL_CRASH_POINTS=$(POINTS) TIDEMILL_CHAOS_SEED=$(SEED) $(GO) test -tags slow -count=1 -timeout 0 -v -run TestCrash ./e2e/crash

attacks: ## attack a tidemill with tokens from outside: routes, ports, memory, and everything that it reads
	TIDEMILL_ONNXRUNTIME=$${TIDEMILL_ONNXRUNTIME:-$$(./.ci/onnxruntime-install)} $(CALM) -tags slow -count=1 -v ./e2e/attacks

fuzz: ## run every fuzz target for FUZZTIME (60s)
	@set -e; for pkg in $$($(GO) list ./...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$pkg | grep ^Fuzz); do \
	    echo "$$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1s $$pkg; \
	  done; done

# The compiler writes no debug information, because the linker would drop it. That
# saves a fifth of the time of a first build.
# The dashboard is compiled without inlining (-l): each element of a page would be
# inlined otherwise. That saves 3 MB.
# gRPC's tracing pages contain templates, which call methods by names that exist
# only at run time. With them the linker keeps every method of every type: 18 MB.
# ONNX Runtime is fetched while the compiler runs. The build does not need it.
build: ## build bin/tidemill, and on Linux fetch ONNX Runtime for models that the built-in engine does not run
	@if [ "$$(uname -s)" = Linux ] && [ ! -e bin/libonnxruntime.so ]; then \
	  { ONCE=1 $(MAKE) -s onnxruntime || echo "models that need ONNX Runtime, such as transformers, cannot be served before make onnxruntime works"; } & fi; \
	  CGO_ENABLED=0 $(GO) build -trimpath -tags grpcnotrace -gcflags=all=-dwarf=false -gcflags='tidemill.dev/internal/gateway/dashboard=-dwarf=false -l' -ldflags='-s -w' -o bin/tidemill ./cmd/tidemill; \
	  built=$$?; wait; exit $$built

image: ## build bin/tidemill-image.tar, an OCI image, without a container engine; on Debian or Ubuntu; IMAGE=registry.example/tidemill:v1
	$(GO) run -C image . -name $(IMAGE) -o bin/tidemill-image.tar

sbom: ## write bin/tidemill.cdx.json, a list of all parts of the image (SBOM, CycloneDX) for scanners of vulnerabilities; on Debian or Ubuntu
	$(GO) run -C image . -sbom bin/tidemill.cdx.json

release: ## write archives of tidemill for Linux and macOS, x86-64 and arm64, an SBOM (CycloneDX) and SHA256SUMS into bin/release
	$(GO) run -C image . -release bin/release

onnxruntime: ## fetch ONNX Runtime next to bin/tidemill, for models that the built-in engine does not run; Linux, x86-64 or arm64
	@mkdir -p bin
	@library=$$(./.ci/onnxruntime-install) && cp $$library bin/libonnxruntime.so.part && mv bin/libonnxruntime.so.part bin/libonnxruntime.so && \
	  echo "bin/tidemill finds bin/libonnxruntime.so; for others: export TIDEMILL_ONNXRUNTIME=$$library"

dashboard: ## write the board for Grafana into the chart
	@cd charts/grafana && GOWORK=off $(GO) run .

man: ## write the man pages of all commands into bin/man
	@rm -rf bin/man && $(GO) run ./internal/cli/man bin/man/man1

clean: ## remove what was built here
	rm -rf bin
