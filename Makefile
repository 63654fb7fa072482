# `make up` shows it working, `make test` proves it; both set up all they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# More than cores: many tests wait for other processes.
JOBS ?= 4
# Handed out in small lots: otherwise one process is left with the slow ones at the end.
RUN := $(BIN)/pytest -n $(JOBS) --maxschedchunk 16

.PHONY: up demo demo-kingdom test quick check soak bench clean

up: $(VENV)/installed
	@$(BIN)/pabal up

demo: $(VENV)/installed
	$(BIN)/python examples/demo/demo.py

demo-kingdom: $(VENV)/tested
	$(BIN)/python examples/kingdom/demo.py

test: $(VENV)/tested check
	$(RUN)

quick: $(VENV)/tested check
	$(RUN) -q -m "not server and not slow"

check: $(VENV)/tested
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

soak: $(VENV)/tested
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[soak]'
	PABAL_SOAK=1 $(RUN) --timeout 3600 -o faulthandler_timeout=0 tests/crash tests/damage tests/conformance tests/manager tests/mailbox tests/apps tests/mcp tests/fuzz tests/queues

bench: $(VENV)/tested
	$(BIN)/python benchmarks/run.py

$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or later is needed: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' || scripts/system-packages
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[gateway]'
	touch $@

$(VENV)/tested: $(VENV)/installed constraints.txt scripts/system-packages
	scripts/system-packages
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test,bench]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
