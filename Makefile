# `make demo` and `make test` are all that a fresh clone needs: each makes the virtual environment by itself.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# One pinned torch for development and tests; the package itself sets no upper bound on anything.
TORCH  := torch==2.13.0
# Tests mostly wait: for processes, servers, deadlines. So a few run at a time, each file in one process.
JOBS   ?= 3
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: help demo test lint types layers tests tools oldest format bench clean

help:
	@echo "make demo    write a data set, stream it, train, stop in mid-epoch, resume (REMOTE=s3://bucket/prefix for a store)"
	@echo "make test    formatter, linter, types, layers and all tests"
	@echo "make bench   the benchmarks"

$(VENV)/python: Makefile
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or later is needed")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/demo: $(VENV)/python pyproject.toml
	$(PIP) install -e '.[demo]' $(TORCH)
	touch $@

$(VENV)/dev: $(VENV)/python pyproject.toml
	$(PIP) install -e '.[dev]' $(TORCH)
	touch $@ $(VENV)/demo

demo: $(VENV)/demo
	$(BIN)/python examples/demo.py $(if $(REMOTE),--remote $(REMOTE))

test: lint types layers tests oldest

lint: $(VENV)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/dev
	$(BIN)/mypy

layers: $(VENV)/dev
	$(BIN)/lint-imports

tests: $(VENV)/dev tools
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

# Servers for tests that no wheel has. Without npm, nginx or sshd the tests that need them are skipped, and say so.
tools: $(VENV)/tools/azurite

$(VENV)/tools/azurite: $(VENV)/python
	mkdir -p $(VENV)/tools
	if ! command -v npm >/dev/null; then echo "no npm: tests against Azure are skipped"; \
	elif npm install --prefix $(VENV)/tools --no-audit --no-fund --silent azurite@3; then touch $@; \
	else echo "Azurite cannot be installed: tests against Azure are skipped"; fi

# The order is the same under any numpy: its digests also under the oldest that we take (which has no wheels after 3.12).
oldest: $(VENV)/oldest
	if test -d $(VENV)/oldest-numpy; then $(VENV)/oldest-numpy/bin/python -m pytest -q -p no:cacheprovider tests/unit/order; fi

$(VENV)/oldest: $(VENV)/python
	if $(PYTHON) -c 'import sys; sys.exit(sys.version_info >= (3, 13))'; then \
		$(PYTHON) -m venv $(VENV)/oldest-numpy && \
		$(VENV)/oldest-numpy/bin/python -m pip --disable-pip-version-check --quiet install 'numpy==1.26.*' pytest hypothesis; \
	else echo "numpy 1.26 has no wheels for this Python: its digests are not checked here"; fi
	touch $@

format: $(VENV)/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/dev
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
