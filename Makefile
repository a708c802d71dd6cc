PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEV := $(VENV)/.dev-installed
DOCS := $(VENV)/.docs-installed
PEERS := $(VENV)/.peers-installed

# Two test workers with one thread each: they do not compete for cores, and sums do not depend on the thread count.
# A file is one worker's: what its tests share, such as trained methods, is made once.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: help demo test test-data gallery reliability lint bench peers docs figures release-check clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

demo: $(DEV) ## train on the four toy tasks, write demo/report.html
	rm -rf demo
	$(BIN)/python -m paper demo --out demo

test: $(DEV) ## run the tests that need no data and no network (PYTEST_ARGS for more options)
	$(TEST_ENV) $(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not data and not gallery" $(PYTEST_ARGS)

test-data: $(DEV) ## run the tests on real data, which needs FSVI_DATA
	$(TEST_ENV) $(BIN)/python -m pytest -q -n 2 -m data $(PYTEST_ARGS)

gallery: $(DEV) ## run the gallery, and all code of README and docs
	$(TEST_ENV) $(BIN)/python -m pytest -q -n 2 -m "gallery and not data" tests/test_gallery.py tests/test_tutorials.py

reliability: $(DEV) ## damage 500 models and 500 tables, and count the outcomes (about a minute)
	$(TEST_ENV) PYTHONPATH=.:tests $(BIN)/python -m reliability --out reliability

lint: $(DEV) ## ruff, mypy and the import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(DEV) ## measure step and prediction costs, write bench/
	$(BIN)/python -m paper bench --out bench

peers: $(PEERS) ## measure fsvi next to other libraries, write paper/peers/ (half an hour; ONLY="cnn,predictions" for two sections)
	$(BIN)/python -m paper bench --peers --out paper/peers $(if $(ONLY),--only "$(ONLY)")

docs: $(DOCS) ## write the results page from paper/results/, build the documentation into site/
	PYTHONPATH=. $(BIN)/python docs/write_results.py
	$(BIN)/mkdocs build --strict --quiet

release-check: $(DEV) ## build, twine check, wheel and sdist in fresh environments (needs a network; half an hour)
	$(BIN)/python -m pip install -qq build twine
	$(BIN)/python docs/release_check.py $(VERSIONS)

figures: $(DEV) ## redraw the tutorials' pictures with the code on their pages
	$(BIN)/python docs/draw.py

clean: ## remove the environment and everything generated
	rm -rf $(VENV) demo bench reliability site build src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src paper tests -type d -name __pycache__ -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(DEV): pyproject.toml tests/foreign/requirements.txt | $(BIN)/python
	@echo "Installing fsvi into $(VENV) (once; a few minutes)"
	$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[dev]'
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps -r tests/foreign/requirements.txt
	@touch $@

$(DOCS): $(DEV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[docs]'
	@touch $@

$(PEERS): tests/foreign/peers.txt | $(DEV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[peers]'
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps -r tests/foreign/peers.txt
	@touch $@
