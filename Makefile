# Everything runs in .venv, which the targets make themselves; Python 3.11+ and make are enough.

VENV := .venv
BIN := $(VENV)/bin

# The first interpreter that runs, is new enough and can make a virtual environment. Being found is
# not enough: a version manager may put names on the PATH that fail when called.
CHECK := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for candidate in python3.14 python3.13 python3.12 python3.11 python3; do \
	if $$candidate -c '$(CHECK)' >/dev/null 2>&1; then echo $$candidate; break; fi; done)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.SECONDARY:

.PHONY: help
help:  ## list the targets
	@grep -E '^[a-z-]+: .*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

.PHONY: demo
demo: $(VENV)/.installed-cli  ## draw the accuracy/cost curve of the embedded thyroid data
	$(BIN)/greedymiser demo --out demo-output

# Two processes; a file's tests stay together, since they share what takes long to make, and files
# are taken in the order of tests/conftest.py: those that take longest first.
IN_TWO := -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: test
test: $(VENV)/.installed-dev  ## run all tests, those of the experiments included
	$(BIN)/python -m pytest $(IN_TWO)

.PHONY: test-quick
# No cluster, simulator, browser, process of its own or experiment, and few random examples of each
# kind.
test-quick: $(VENV)/.installed-dev  ## run the tests that are quick
	$(BIN)/python -m pytest $(IN_TWO) --hypothesis-profile quick \
		-m "not (cluster or simulator or browser or subprocess or slow)" tests

.PHONY: test-gpu
# numba-cuda 0.30 uses what NumPy 2.5 warns of.
test-gpu: $(VENV)/.installed-gpu  ## run the tests of engine="cuda" on this machine's GPU
	GREEDYMISER_TEST_ENGINE=cuda $(BIN)/python -m pytest -W ignore::DeprecationWarning \
		tests/conformance tests/on_device.py

.PHONY: test-oldest
# Every direct dependency in the oldest version that pyproject.toml allows. Warnings are no errors
# here: most are about each other.
test-oldest: $(VENV)/.installed-package  ## run the tests with the oldest versions that we allow
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(VENV)-oldest
	$(BIN)/uv pip install --quiet --python $(VENV)-oldest/bin/python --resolution lowest-direct \
		--editable '.[test]'
	$(VENV)-oldest/bin/python -m pytest $(IN_TWO) -o filterwarnings=

.PHONY: test-platforms
# Feast and MLflow ask for a hundred packages, some of them in old versions (pandas below 3), so they
# are in no environment of ours but this one.
test-platforms: $(VENV)/.installed-package  ## run the tests of Feast and MLflow
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(VENV)-platforms
	$(BIN)/uv pip install --quiet --python $(VENV)-platforms/bin/python \
		--editable '.[frames,feast,mlflow]' pytest hypothesis
	$(VENV)-platforms/bin/python -c "import feast, mlflow"
	$(VENV)-platforms/bin/python -m pytest tests/test_feast.py tests/test_mlflow.py

.PHONY: ptx
# Always with the same NVVM: what has not changed stays as it is.
ptx: $(VENV)/.installed-package  ## compile the kernels for GPUs anew; needs no GPU
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(VENV)-ptx
	$(BIN)/uv pip install --quiet --python $(VENV)-ptx/bin/python \
		--editable '.[cuda]' 'nvidia-nvvm==13.0.*'
	$(VENV)-ptx/bin/python tools/compile_ptx.py

.PHONY: kernels
# For no processor in particular.
kernels: $(VENV)/.installed-dev  ## compile the kernels anew, as far as all processors have it in common
	NUMBA_CPU_NAME=generic NUMBA_LOOP_VECTORIZE=0 NUMBA_SLP_VECTORIZE=0 \
		$(BIN)/python tools/compile_kernels.py

.PHONY: test-env
test-env: $(VENV)/.installed-dev  ## only set up what test and lint need

.PHONY: lint
lint: $(VENV)/.installed-dev  ## check format, style, types and the direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy src experiments tests/typed_snippet.py
	$(BIN)/python -m pytest tests/test_imports.py -q

.PHONY: format
format: $(VENV)/.installed-dev  ## format the code and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: docs
# Warnings are errors, and nothing is fetched. DOCS=-Dplot_gallery=0 leaves the examples unrun.
DOCS ?=
docs: $(VENV)/.installed-dev  ## build the site in build/site, its gallery included
	$(BIN)/python -m sphinx -W --keep-going -n -q -d build/doctrees $(DOCS) docs build/site
	@echo "build/site/index.html"

.PHONY: bench
bench: $(VENV)/.installed-bench  ## print speed ratios against the peers
	$(BIN)/python -m benchmarks

# make reproduce NAME=mq2008 DATA=folder OUT=results/mq2008; FLAGS=--small for a quick version.
NAME ?=
DATA ?=
OUT ?=
FLAGS ?=
.PHONY: reproduce
reproduce: $(VENV)/.installed-experiments  ## run an experiment of the paper: NAME, DATA, OUT
	@test -n "$(NAME)" || { echo "Which one? make reproduce NAME=yahoo, mq2008 or scene15" >&2; exit 2; }
	$(BIN)/python -m experiments $(NAME) $(if $(DATA),--data "$(DATA)") $(if $(OUT),--out "$(OUT)") $(FLAGS)

# Damages files for SECONDS, and keeps in fuzz-findings what is neither refused nor works. What was
# mended goes to tests/files/findings, where make test tries it again.
SECONDS ?= 60
SEED ?=
.PHONY: fuzz
fuzz: $(VENV)/.installed-dev  ## damage files for SECONDS (60), and see that readers survive it
	$(BIN)/python tools/fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

# All interpreters from 3.11 on that run here; PYTHONS="python3.12" for some of them.
PYTHONS ?=
.PHONY: package
package: $(VENV)/.installed-package  ## build the wheel, check it, try it in empty environments
	$(BIN)/python tools/try_wheel.py $(if $(PYTHONS),--pythons $(PYTHONS))

.PHONY: clean
clean:  ## remove the environment, caches and build results
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-platforms $(VENV)-ptx build dist docs/gallery docs/reference demo-output fuzz-findings .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created:
	@test -n "$(PYTHON)" || { echo "No Python >= 3.11 that can make a virtual environment was" \
		"found; name one with make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# One stamp per extra; a change of pyproject.toml makes all of them stale.
$(VENV)/.installed-%: pyproject.toml $(VENV)/.created
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@
