# Two commands for a newcomer: `make demo` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2

.PHONY: demo test lint format clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[dev]"
	touch $@

demo: $(VENV)/.installed
	$(BIN)/python -m mnemolab demo

# One torch thread a worker: the tests are many and small, and two workers share two cores.
test: $(VENV)/.installed
	OMP_NUM_THREADS=1 HYPOTHESIS_PROFILE=ci $(BIN)/python -m pytest -n $(JOBS) -q -m "not slow and not gpu" tests

lint: $(VENV)/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

format: $(VENV)/.installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) runs build *.egg-info .pytest_cache .ruff_cache .hypothesis
