# make demo   both rounds on the embedded demo      make test   all tests
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint clean

demo: .venv/installed
	@$(BIN)/luigi --module tasks SecondRound
	@$(BIN)/luigi --module tasks Control
	@$(BIN)/aoq results demo
	@echo
	@echo "Next: look at what the teacher finds hardest for an image of the training set:"
	@echo "  $(BIN)/aoq inspect demo --image 17 --top 10"

test: .venv/installed
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[cpu,dev]"
	@touch $@

clean:
	rm -rf .venv artifacts runs
