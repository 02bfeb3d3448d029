# Two commands do everything: `make run` and `make test`. Both set up their environment.

PYTHON ?= python3
VENV := .venv
INTEROP := .venv-all
BIN := $(VENV)/bin
STAMPS := .stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check
export OMP_NUM_THREADS ?= 1

.PHONY: run test test-all test-deep test-plans test-torch mutants bench bench-engine bench-host bench-checkpoint bench-tiers bench-parallel bench-editor gpu releases dialects site lint format generate clean help

help:
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

# torch comes first and alone, so that nothing installs another build of it. An editable install compiles
# no bytecode, and some environments do not let Python write it later: hence compileall.
$(STAMPS)/setup: pyproject.toml constraints.txt
	@mkdir -p $(STAMPS) && date +%s > $(STAMPS)/began
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) install --quiet "torch==2.13.0"
	$(PIP) install --quiet --constraint constraints.txt --editable ".[engine,dev,plot]"
	$(BIN)/python -m compileall -q dsconfig engine/dsengine
	@echo $$(($$(date +%s) - $$(cat $(STAMPS)/began))) > $@

# The real programs have an environment of their own: tests in `make test` behave differently beside them.
$(STAMPS)/interop: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(INTEROP)
	$(INTEROP)/bin/python -m pip --disable-pip-version-check install --quiet "torch==2.13.0"
	$(INTEROP)/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt \
		--editable ".[engine,dev,plot,interop,docs]"
	@mkdir -p $(STAMPS) && touch $@

run: $(STAMPS)/setup ## run the tour: check, resolve, estimate, train, resume, export
	$(BIN)/python examples/tour.py

SUITE = PYTHONPATH=tests $(1)/bin/python -m suite

test: $(STAMPS)/setup ## run lint, unit and engine tests; PART=unit runs one
	$(call SUITE,$(VENV)) test $(PART)

# SkyPilot requires about 100 packages, among them a web server: it has an environment of its own.
.skypilot/ready:
	$(PYTHON) -m venv --clear .skypilot
	.skypilot/bin/python -m pip install --quiet "skypilot==0.14.1"
	@touch $@

# A slice that has passed with the same product, tests and constraints is not repeated.
test-all: $(STAMPS)/interop .skypilot/ready ## test against the real programs, in slices; SLICE=peers runs one
	DS_ACCELERATOR=cpu $(call SUITE,$(INTEROP)) all $(SLICE)

# Takes hours; an interrupted run resumes.
test-deep: $(STAMPS)/setup mutants ## run sweeps that are too long for the suite
	$(BIN)/python -m pytest -m deep --hypothesis-profile random

test-plans: $(STAMPS)/interop ## train a small model of every family with a parallel plan; resumable
	PYTHONPATH=tests $(INTEROP)/bin/python -m plans.sweep run
	PYTHONPATH=tests $(INTEROP)/bin/python -m plans.sweep check

# Each release gets its own environment, which is kept. VERSION=2.11.0 is the oldest supported one.
TORCH = .torch/$(VERSION)
test-torch: ## run the engine's tests with another torch: make test-torch VERSION=2.15.0
	@test -n "$(VERSION)" || { echo "specify the torch release: make test-torch VERSION=2.15.0"; exit 2; }
	test -e $(TORCH)/ready || { \
		$(PYTHON) -m venv --clear $(TORCH) && \
		$(TORCH)/bin/python -m pip install --quiet "torch==$(VERSION)" && \
		$(TORCH)/bin/python -m pip install --quiet --constraint constraints.txt \
			"torch==$(VERSION)" --editable ".[engine,dev,plot]" && touch $(TORCH)/ready; }
	mkdir -p runs/torch
	rm -f runs/torch/$(VERSION).xml
	$(TORCH)/bin/python -m pytest -n 2 --dist loadfile -m "(engine or torch) and not live and not deep" \
		--junitxml=runs/torch/$(VERSION).xml; tested=$$?; \
		$(TORCH)/bin/python -m tests.torch_releases runs/torch/$(VERSION).xml $(VERSION) && \
		exit $$tested

# Which test runs which line is recorded once; delete runs/mutants to start over.
mutants: $(STAMPS)/setup ## test the suite with 200 mutants of the core
	test -e runs/mutants/light || PYTHONPATH=tests $(BIN)/python -m mutation record light
	test -e runs/mutants/engine || PYTHONPATH=tests $(BIN)/python -m mutation record engine
	PYTHONPATH=tests $(BIN)/python -m mutation run
	PYTHONPATH=tests $(BIN)/python -m mutation page

dialects: $(STAMPS)/setup ## extract the defaults of launched programs from their released packages
	PYTHONPATH=tests $(BIN)/python -m facts.dialect_defaults

bench: $(STAMPS)/interop ## compare start-up and throughput with the alternatives
	$(INTEROP)/bin/python benchmarks/run.py

bench-checkpoint: $(STAMPS)/interop ## compare saving and loading with torch.distributed.checkpoint
	$(INTEROP)/bin/python benchmarks/checkpoint.py

bench-tiers: export OMP_NUM_THREADS = $(shell nproc)
bench-tiers: $(STAMPS)/interop ## compare an offloaded step with memory and disk bandwidth and DeepSpeed
	$(INTEROP)/bin/python benchmarks/tiers.py

bench-engine: $(STAMPS)/interop ## compare the engine with DDP, fully_shard and DeepSpeed
	$(INTEROP)/bin/python benchmarks/engine.py

bench-editor: $(STAMPS)/setup ## measure the latency of the language server
	$(BIN)/python benchmarks/editor.py

bench-host: $(STAMPS)/interop ## compare the host time of a step with DDP, fully_shard and DeepSpeed
	$(INTEROP)/bin/python benchmarks/host_cost.py

bench-parallel: $(STAMPS)/interop ## compare sequence and tensor parallelism with hand-written torch and DeepSpeed
	$(INTEROP)/bin/python benchmarks/parallel.py

# Measurements for this commit and GPU are kept in runs/gpu and not repeated.
gpu: $(STAMPS)/setup ## measure on a GPU and write docs/internals/gpu.md
	PYTHONPATH=tests $(BIN)/python -m gpu

# RELEASES="transformers==5.24.0 transformers==5.23.0" compares these two.
releases: $(STAMPS)/interop ## print what new releases of DeepSpeed, transformers and accelerate change
	status=0; for part in "releases $(RELEASES)" "facts.dialect_defaults --newest" failures.phrases; do \
		PYTHONPATH=tests $(INTEROP)/bin/python -m $$part || status=1; done; exit $$status

site: $(STAMPS)/interop ## build the documentation site in runs/site/public
	$(INTEROP)/bin/python website/build_site.py

lint: $(STAMPS)/setup ## run ruff and pyright, and check generated files and the distribution
	$(call SUITE,$(VENV)) test lint

generate: $(STAMPS)/setup ## refresh generated files: schemas, reference, output in README and guides, screenshots
	$(BIN)/python -m dsconfig.generate
	PYTHONPATH=tests $(BIN)/python -m guide_pages
	PYTHONPATH=tests $(BIN)/python -m screenshots
	PYTHONPATH=tests $(BIN)/python -m memory_figures

format: $(STAMPS)/setup ## format the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove environments, caches and outputs
	rm -rf $(VENV) $(INTEROP) $(STAMPS) .torch .skypilot runs .pytest_cache .ruff_cache .hypothesis build dist
