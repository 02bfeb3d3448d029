# Two commands do everything: `make run` and `make test`. Set-up is part of both.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := .stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check
export OMP_NUM_THREADS ?= 1

.PHONY: run test test-all test-deep test-torch mutants bench bench-engine bench-checkpoint bench-tiers gpu lint format generate clean help

help:
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

# torch first and by itself, so that nothing pulls another build of it. An editable install leaves
# bytecode to the first run, which not every environment lets Python keep: hence compileall.
$(STAMPS)/setup: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) install --quiet "torch==2.13.0"
	$(PIP) install --quiet --constraint constraints.txt --editable ".[engine,dev,plot]"
	$(BIN)/python -m compileall -q dsconfig engine/dsengine
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/interop: $(STAMPS)/setup
	$(PIP) install --quiet --constraint constraints.txt --editable ".[engine,dev,plot,interop]"
	@touch $@

run: $(STAMPS)/setup ## the main job, on real input
	$(BIN)/python examples/tour.py

# Tests that train wait for their ranks more than they compute: two files of them run side by side.
test: $(STAMPS)/setup ## the test suite
	$(BIN)/python -m pytest -n 2 -m "not engine and not live and not browser and not long and not deep"
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "engine and not live and not browser and not long and not deep"

test-all: $(STAMPS)/interop ## the live oracles, whole jobs, and the browser where there is one
	DS_ACCELERATOR=cpu $(BIN)/python -m pytest -m "(live or browser or long) and not deep"

# Hours, and not part of any submission: what is stopped goes on where it was.
test-deep: $(STAMPS)/setup mutants ## sweeps too long for the suite
	$(BIN)/python -m pytest -m deep -o faulthandler_timeout=0

# An environment of its own for each release, kept: VERSION=2.11.0 is the oldest that is supported.
TORCH = .torch/$(VERSION)
test-torch: ## the engine's tests with another torch: make test-torch VERSION=2.15.0
	@test -n "$(VERSION)" || { echo "say which torch: make test-torch VERSION=2.15.0"; exit 2; }
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

# Which test runs which line is recorded once; delete runs/mutants to begin anew.
mutants: $(STAMPS)/setup ## 200 small mistakes in the core rooms: which of them would the suite notice?
	test -e runs/mutants/light || PYTHONPATH=tests $(BIN)/python -m mutation record light
	test -e runs/mutants/engine || PYTHONPATH=tests $(BIN)/python -m mutation record engine
	PYTHONPATH=tests $(BIN)/python -m mutation run
	PYTHONPATH=tests $(BIN)/python -m mutation page

bench: $(STAMPS)/interop ## start-up and throughput beside the alternatives
	$(BIN)/python benchmarks/run.py

bench-checkpoint: $(STAMPS)/interop ## saving and loading beside torch.distributed.checkpoint
	$(BIN)/python benchmarks/checkpoint.py

bench-tiers: export OMP_NUM_THREADS = $(shell nproc)
bench-tiers: $(STAMPS)/interop ## an offloaded step beside memory, disk and DeepSpeed
	$(BIN)/python benchmarks/tiers.py

bench-engine: $(STAMPS)/interop ## the engine beside DDP, fully_shard and DeepSpeed
	$(BIN)/python benchmarks/engine.py

# What was measured for this commit and card is kept in runs/gpu, and not measured again.
gpu: $(STAMPS)/setup ## what only a card can show, measured on one: docs/internals/gpu.md
	PYTHONPATH=tests $(BIN)/python -m gpu

lint: $(STAMPS)/setup ## ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

generate: $(STAMPS)/setup ## refresh generated files: schemas, reference, output in README and guides, screenshots
	$(BIN)/python -m dsconfig.generate
	PYTHONPATH=tests $(BIN)/python -m guide_pages
	PYTHONPATH=tests $(BIN)/python -m screenshots

format: $(STAMPS)/setup ## rewrite the sources in one style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove what set-up and runs have made
	rm -rf $(VENV) $(STAMPS) .torch runs .pytest_cache .ruff_cache .hypothesis build dist
