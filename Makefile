# glmforge: two commands do everything, `make demo` and `make test`; both install first.
#
# PYTHON=/path/to/python3.12 chooses the interpreter (3.11, 3.12 or 3.13) that makes .venv.
# TESTS=tests/unit/data narrows `make unit`.

BIN := .venv/bin
STAGE := sh scripts/stage.sh
CODE := src tests benchmarks scripts
TESTS ?= tests/unit

# Tests use no network, and one thread a process: several processes share the cores.
QUIET_ENV := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1 TOKENIZERS_PARALLELISM=false
PYTEST := env $(QUIET_ENV) $(BIN)/python -m pytest

.DEFAULT_GOAL := demo
.PHONY: demo test test-all test-browser bench faults release-check check format unit setup help

demo: setup  ## install, then train, evaluate, merge and compare a small model on the CPU
	@$(STAGE) demo $(BIN)/glmforge demo

test: check unit  ## install, then every check and every test that needs no GPU
	@$(STAGE) "tests on several processes and of the whole program" \
	  $(PYTEST) tests --ignore=tests/unit

test-all: test  ## the same and the long tier
	@$(STAGE) "long tests" $(PYTEST) tests -m slow

test-browser: setup  ## drive the pages in headless Chromium, installed into build/ where there is none
	@folder=$$(sh scripts/browser.sh) && PATH="$${folder:+$$folder:}$$PATH" && export PATH && \
	  $(STAGE) "pages in a browser" $(PYTEST) tests/e2e/test_*_page.py -m "slow or not slow"

faults: setup  ## kill runs 200 times, damage their checkpoints, fill their disks; all must end as if undisturbed
	@rm -rf build/faults && mkdir -p build/faults
	@$(STAGE) "200 kills" env $(QUIET_ENV) $(BIN)/python tests/faults/harness.py build/faults

bench: setup  ## ratios against what users run today, on this machine (GPU: benchmarks/README.md)
	@$(STAGE) "tokenizer throughput" $(BIN)/python benchmarks/tokenizer_speed.py \
	  src/glmforge/assets/base

release-check: setup  ## exports opened by stock transformers and PEFT in a clean environment without glmforge
	@rm -rf build/release-check && mkdir -p build/release-check
	@$(STAGE) "exports in a clean environment" env $(QUIET_ENV) $(BIN)/python scripts/release_check.py build/release-check

check: setup  ## lint, format, types, layers
	@$(STAGE) "lint (ruff)" $(BIN)/ruff check $(CODE)
	@$(STAGE) "format (ruff)" $(BIN)/ruff format --check $(CODE)
	@$(STAGE) "types (mypy)" $(BIN)/mypy
	@$(STAGE) "layers (import-linter)" $(BIN)/lint-imports --no-logo

unit: setup  ## unit tests only
	@$(STAGE) "unit tests" $(PYTEST) -n 3 --dist loadfile $(TESTS)

format: setup  ## rewrite the code in the house format
	@$(BIN)/ruff check --fix $(CODE)
	@$(BIN)/ruff format $(CODE)

setup:
	@PYTHON='$(PYTHON)' sh scripts/setup.sh

help:  ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/make \1\t\2/p' Makefile | expand -t 16
