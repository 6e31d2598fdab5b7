# The same commands locally and in CI. Everything runs in .venv, which is made on first use and
# refreshed only when pyproject.toml changes.

PYTHON ?= python3
ROUNDS ?= 3
STREAMS ?= 1

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-fast soak gpu-check check venv

demo: $(STAMP)
	$(BIN)/hybridspec demo run --rounds $(ROUNDS) --streams $(STREAMS)

test: $(STAMP)
	$(BIN)/python -m pytest

test-fast: $(STAMP)
	$(BIN)/python -m pytest -m "not engine and not slow"

soak: $(STAMP)
	SOAK_MINUTES=30 MIX_MINUTES=5 $(BIN)/python -m pytest -s tests/test_engine_soak.py tests/test_engine_mixes.py

# CHECK="--model M --head H --gate G": your own; the embedded target by default.
gpu-check: $(STAMP)
	$(BIN)/hybridspec gpu-check $(CHECK)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

venv: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "hybridspec needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "installing hybridspec with SGLang: about 11 GB and several minutes the first time"
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $(STAMP)
