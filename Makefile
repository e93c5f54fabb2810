# Every target sets itself up: .venv is made and filled once, and again only when a pin or a member changes.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt
MEMBERS := libs/api libs/core libs/client libs/cli services/store services/ingest services/delivery
PINS := constraints.txt pyproject.toml $(wildcard libs/*/pyproject.toml services/*/pyproject.toml)
export UV_NO_SYNC := 1

help: ## What each target does
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  %-18s %s\n", $$1, $$2}'

$(VENV)/.uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Eddyline needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "setting up $(VENV) (once)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $$(grep -E '^uv==' constraints.txt)
	@touch $@

$(VENV)/.run: $(VENV)/.uv $(PINS)
	@$(UV) hatchling editables
	@$(UV) --no-build-isolation $(addprefix -e ,$(MEMBERS))
	@touch $@

$(VENV)/.test: $(VENV)/.run
	@$(UV) --group test
	@touch $@

$(VENV)/.dev: $(VENV)/.test
	@$(UV) --group dev
	@touch $@

setup: $(VENV)/.run ## Only the set-up of run
.PHONY: help setup

## --- the contract ------------------------------------------------------------------------------------------
PROTOS := $(sort $(wildcard proto/eddyline/v1/*.proto))
PROTOC := $(BIN)/python -m grpc_tools.protoc -Iproto --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc

proto: $(VENV)/.dev ## Regenerate libs/api from proto/
	@rm -f libs/api/eddyline/v1/*_pb2*.py*
	@$(PROTOC) --python_out=libs/api --grpc_python_out=libs/api --mypy_out=quiet:libs/api --mypy_grpc_out=quiet,only_async:libs/api $(PROTOS)
	@touch libs/api/eddyline/v1/py.typed

proto-freeze: $(VENV)/.dev ## Write the image that breaking changes are judged against
	@cd proto && ../$(BIN)/buf build -o ../tests/golden/eddyline.v1.binpb

verify-proto: $(VENV)/.dev ## Fail if libs/api is not what proto/ gives, or the contract breaks
	@rm -rf build/api && mkdir -p build/api
	@$(PROTOC) --python_out=build/api --grpc_python_out=build/api --mypy_out=quiet:build/api --mypy_grpc_out=quiet,only_async:build/api $(PROTOS)
	@diff -r -x py.typed -x __pycache__ build/api/eddyline/v1 libs/api/eddyline/v1
	@cd proto && ../$(BIN)/buf format --diff --exit-code && ../$(BIN)/buf lint
	@cd proto && ../$(BIN)/buf breaking --against ../tests/golden/eddyline.v1.binpb
.PHONY: proto proto-freeze verify-proto
