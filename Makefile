# Two commands do everything: `make run` and `make test`. Both set up their environment.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := .stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check
export OMP_NUM_THREADS ?= 1

.PHONY: run test test-all test-deep test-plans test-torch mutants bench bench-engine bench-host bench-checkpoint bench-tiers bench-parallel bench-editor gpu releases site lint format generate clean help

help:
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

# torch comes first and alone, so that nothing installs another build of it. An editable install compiles
# no bytecode, and some environments do not let Python write it later: hence compileall.
$(STAMPS)/setup: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) install --quiet "torch==2.13.0"
	$(PIP) install --quiet --constraint constraints.txt --editable ".[engine,dev,plot]"
	$(BIN)/python -m compileall -q dsconfig engine/dsengine
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/interop: $(STAMPS)/setup
	$(PIP) install --quiet --constraint constraints.txt --editable ".[engine,dev,plot,interop,docs]"
	@touch $@

run: $(STAMPS)/setup ## run the tour: check, resolve, estimate, train, resume, export
	$(BIN)/python examples/tour.py

# Tests that train mostly wait for their ranks: two files run in parallel.
test: $(STAMPS)/setup ## run the test suite
	$(BIN)/python -m pytest -n 2 -m "not engine and not live and not browser and not long and not deep"
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "engine and not live and not browser and not long and not deep"

# SkyPilot requires about 100 packages, among them a web server: it has an environment of its own.
.skypilot/ready:
	$(PYTHON) -m venv --clear .skypilot
	.skypilot/bin/python -m pip install --quiet "skypilot==0.14.1"
	@touch $@

test-all: $(STAMPS)/interop .skypilot/ready ## test against the real programs, full jobs, and a browser if there is one
	DS_ACCELERATOR=cpu $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "(live or browser or long) and not deep"

# Takes hours; an interrupted run resumes.
test-deep: $(STAMPS)/setup mutants ## run sweeps that are too long for the suite
	$(BIN)/python -m pytest -m deep -o faulthandler_timeout=0

test-plans: $(STAMPS)/interop ## train a small model of every family with a parallel plan; resumable
	PYTHONPATH=tests $(BIN)/python -m plans.sweep run
	PYTHONPATH=tests $(BIN)/python -m plans.sweep check

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

bench: $(STAMPS)/interop ## compare start-up and throughput with the alternatives
	$(BIN)/python benchmarks/run.py

bench-checkpoint: $(STAMPS)/interop ## compare saving and loading with torch.distributed.checkpoint
	$(BIN)/python benchmarks/checkpoint.py

bench-tiers: export OMP_NUM_THREADS = $(shell nproc)
bench-tiers: $(STAMPS)/interop ## compare an offloaded step with memory and disk bandwidth and DeepSpeed
	$(BIN)/python benchmarks/tiers.py

bench-engine: $(STAMPS)/interop ## compare the engine with DDP, fully_shard and DeepSpeed
	$(BIN)/python benchmarks/engine.py

bench-editor: $(STAMPS)/setup ## measure the latency of the language server
	$(BIN)/python benchmarks/editor.py

bench-host: $(STAMPS)/interop ## compare the host time of a step with DDP, fully_shard and DeepSpeed
	$(BIN)/python benchmarks/host_cost.py

bench-parallel: $(STAMPS)/interop ## compare sequence and tensor parallelism with hand-written torch and DeepSpeed
	$(BIN)/python benchmarks/parallel.py

# Measurements for this commit and GPU are kept in runs/gpu and not repeated.
gpu: $(STAMPS)/setup ## measure on a GPU and write docs/internals/gpu.md
	PYTHONPATH=tests $(BIN)/python -m gpu

# RELEASES="transformers==5.24.0 transformers==5.23.0" compares these two.
releases: $(STAMPS)/interop ## print what new releases of DeepSpeed, transformers and accelerate change
	PYTHONPATH=tests $(BIN)/python -m releases $(RELEASES)

site: $(STAMPS)/interop ## build the documentation site in runs/site/public
	$(BIN)/python website/build_site.py

lint: $(STAMPS)/setup ## run ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest tests/house/test_style.py -k pyright

generate: $(STAMPS)/setup ## refresh generated files: schemas, reference, output in README and guides, screenshots
	$(BIN)/python -m dsconfig.generate
	PYTHONPATH=tests $(BIN)/python -m guide_pages
	PYTHONPATH=tests $(BIN)/python -m screenshots
	PYTHONPATH=tests $(BIN)/python -m memory_figures

format: $(STAMPS)/setup ## format the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove environments, caches and outputs
	rm -rf $(VENV) $(STAMPS) .torch .skypilot runs .pytest_cache .ruff_cache .hypothesis build dist
