# Two commands for a newcomer: `make demo` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2

OUT ?= runs/gpu

.PHONY: demo test lint gpu format clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[dev]"
	touch $@

demo: $(VENV)/.installed
	$(BIN)/python -m mnemolab demo

# One torch thread a worker: the tests are many and small, and two workers share two cores. Each begins with its half of them,
# so that what the tests of a file share is made once, and one that is done takes over from the other.
test: $(VENV)/.installed
	OMP_NUM_THREADS=1 HYPOTHESIS_PROFILE=ci $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -q -m "not slow and not gpu" tests

lint: $(VENV)/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

# On a machine with a CUDA GPU and the packages of the run: its tests, then the figures of docs/kernels_gpu.md and
# docs/training.md as JSON lines in OUT. No part stops the next; the table of each comes last in its file.
gpu:
	mkdir -p $(OUT)
	-$(PYTHON) -m pytest -v -p no:benchmark tests/gpu tests/kernels/test_triton_neighbours.py tests/kernels/test_rows.py \
		tests/kernels/test_row_loss.py tests/kernels/test_philox.py > $(OUT)/tests.txt 2>&1
	tail -n 3 $(OUT)/tests.txt
	-$(PYTHON) -m mnemolab bench training --device cuda --kernels 30 --against zoology-numbers --save $(OUT)/training.jsonl
	-$(PYTHON) -m mnemolab bench kernels --device cuda --ours --save $(OUT)/kernels.jsonl
	-$(PYTHON) -m mnemolab bench decode --device cuda --save $(OUT)/decode.jsonl
	-$(PYTHON) -m mnemolab bench generation --device cuda --save $(OUT)/generation.jsonl

format: $(VENV)/.installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) runs build *.egg-info .pytest_cache .ruff_cache .hypothesis
