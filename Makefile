# make help lists the targets. Everything runs inside .venv, which `make setup` keeps up to date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.up-to-date
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DEFAULT_GOAL := help
.PHONY: help setup run test lint types kernels unit reproduce bench clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv and install fedgs into it (does nothing when up to date)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "fedgs needs Python 3.11 or newer; $(PYTHON) is older. Name another one: make PYTHON=python3.12" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

run: setup  ## the main job: FedGS on the embedded data, FedAvg beside it, about two minutes, results in runs/
	@$(BIN)/fedgs run --out runs/quick-$$(date +%Y%m%d-%H%M%S)

test: setup  ## ruff, mypy --strict, pytest with coverage
	@$(MAKE) --no-print-directory --jobs=2 lint types kernels
	@$(MAKE) --no-print-directory unit

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

# In a fresh clone nothing is compiled yet. Two processes of tests that both meet a kernel first would both compile it, and
# this takes longer than to do it once beforehand, beside mypy.
kernels: setup
	@test -n "$$(find src -name '*.nbi')" || { folder=$$(mktemp -d); echo "compiling kernels, once"; \
	  $(BIN)/python -m reproduction bench-selection --instances 1 --out $$folder/bench >$$folder/said 2>&1 && \
	  $(BIN)/fedgs run --set training.rounds=1 --set training.iterations=1 --out $$folder/run >>$$folder/said 2>&1 \
	  || cat $$folder/said; rm -rf "$$folder"; }

unit: setup
	$(BIN)/pytest

reproduce: setup  ## the paper's figures and tables with a report, small on glyphs (FEMNIST=path.npz: at the paper's size)
	$(BIN)/python -m reproduction all $(if $(FEMNIST),--femnist $(FEMNIST))

bench: setup  ## print the measured claims as ratios (add FEMNIST=path.npz for real data)
	$(BIN)/python benchmarks/selection.py $(if $(FEMNIST),--femnist $(FEMNIST))
	$(BIN)/python benchmarks/planning.py $(if $(FEMNIST),--femnist $(FEMNIST))
	$(BIN)/python benchmarks/simulator.py $(if $(FEMNIST),--femnist $(FEMNIST))
	$(BIN)/python benchmarks/deployment.py --only sync small many faults

clean:  ## remove .venv, caches and runs
	rm -rf $(VENV) runs build dist .pytest_cache .mypy_cache .ruff_cache .coverage
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
