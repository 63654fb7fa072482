# `make up` shows it working, `make test` proves it; both set up all they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2

.PHONY: up demo demo-kingdom test check soak bench clean

up: $(VENV)/installed
	@$(BIN)/pabal up

demo: $(VENV)/installed
	$(BIN)/pabal demo

demo-kingdom: $(VENV)/tested
	$(BIN)/python examples/kingdom/demo.py

test: $(VENV)/tested check
	$(BIN)/pytest -n $(JOBS)

check: $(VENV)/tested
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

soak: $(VENV)/tested
	PABAL_SOAK=1 $(BIN)/pytest -n $(JOBS) --timeout 3600 tests/crash tests/conformance tests/manager tests/mailbox tests/kingdom tests/ignite tests/chat

bench: $(VENV)/tested
	$(BIN)/python benchmarks/run.py

$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or later is needed: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' || scripts/system-packages
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

$(VENV)/tested: $(VENV)/installed constraints.txt scripts/system-packages
	scripts/system-packages
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test,bench]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
