# make help lists the targets. Everything runs inside .venv, which `make setup` keeps up to date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.up-to-date
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DEFAULT_GOAL := help
.PHONY: help setup run test lint types kernels unit coverage flower docs reproduce bench clean
.PHONY: build smoke audit release

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv and install fedgs into it (does nothing when up to date)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "fedgs needs Python 3.11 or newer; $(PYTHON) is older. Name another one: make PYTHON=python3.12" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

run: setup  ## the main job: FedGS and FedAvg on the embedded data, about two minutes, results in runs/
	@$(BIN)/fedgs run --out runs/quick-$$(date +%Y%m%d-%H%M%S)

test: setup  ## ruff, mypy --strict, pytest
	@$(MAKE) --no-print-directory --jobs=2 lint types kernels
	@$(MAKE) --no-print-directory unit

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

# Two processes of tests that both meet a kernel first would both compile it. So it is done beforehand, once, beside mypy.
kernels: setup
	@$(BIN)/python tools/compile_kernels.py

unit: setup
	$(BIN)/pytest

coverage: setup  ## the same pytest, measuring which lines it reaches; slower, so not part of `make test`
	$(BIN)/pytest --cov --cov-report=term:skip-covered

flower: setup  ## the tests that need Flower, which `make test` passes over: install the extra, run them
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,flower]'
	$(BIN)/pytest tests/flower

docs: setup  ## the documentation site, in build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

reproduce: setup  ## the paper's figures and tables with a report, small on glyphs (FEMNIST=path.npz: at the paper's size)
	$(BIN)/python -m reproduction all $(if $(FEMNIST),--femnist $(FEMNIST))

bench: setup  ## print the measured claims as ratios (add FEMNIST=path.npz for real data)
	$(BIN)/python benchmarks/selection.py $(if $(FEMNIST),--femnist $(FEMNIST))
	$(BIN)/python benchmarks/planning.py $(if $(FEMNIST),--femnist $(FEMNIST))
	$(BIN)/python benchmarks/simulator.py $(if $(FEMNIST),--femnist $(FEMNIST))
	$(BIN)/python benchmarks/deployment.py --only sync small many faults

# The wheel is built from the sdist, so that a sdist that lacks a file cannot go unnoticed.
build: setup  ## the sdist and the wheel, in dist/
	@rm -rf dist
	$(BIN)/python -m hatchling build --target sdist
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist dist/*.tar.gz

smoke: setup  ## install the wheel of dist/ in a fresh environment and use it there
	@test -n "$$(ls dist/*.whl 2>/dev/null)" || { echo "no wheel in dist/: run make build first" >&2; exit 2; }
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && $(BIN)/python -m venv $$folder/venv && \
	  $$folder/venv/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl && \
	  cp tools/smoke.py $$folder && cd $$folder && venv/bin/python smoke.py venv

# The database knows no local versions such as torch 2.13.0+cpu. --strict: a package that could not be looked up is a failure.
audit: setup  ## look the installed packages up in the database of known vulnerabilities
	$(BIN)/python -m pip install --quiet --constraint constraints.txt pip-audit
	@list=$$(mktemp) && trap 'rm -f "$$list"' EXIT && \
	  $(BIN)/python -m pip freeze --exclude-editable | sed 's/+.*//' >$$list && \
	  $(BIN)/python -m pip_audit --strict --no-deps --disable-pip --progress-spinner off --requirement $$list

release: setup  ## check, test, build and checksum a release; creates no tag (TESTS=no: skip the tests)
	@$(BIN)/python tools/release.py check
	@$(if $(filter no,$(TESTS)),echo "tests skipped: TESTS=no",$(MAKE) --no-print-directory test)
	@$(MAKE) --no-print-directory build
	@$(MAKE) --no-print-directory smoke
	@$(BIN)/python tools/release.py finish

clean:  ## remove .venv, caches and runs
	rm -rf $(VENV) runs build dist .pytest_cache .mypy_cache .ruff_cache .coverage
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
