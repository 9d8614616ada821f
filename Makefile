# make demo and make test are all that a fresh machine needs: each makes .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-browser fuzz fuzz-service check bench docs lines release-check install clean

demo: .venv/core
	$(BIN)/openfate demo

test: .venv/all
	$(BIN)/pytest -n 2 tests openfate openfate_lab --doctest-modules

# The page of `openfate serve` in a real Chromium; its screenshots are those of docs.
test-browser: .venv/all
	command -v chromium || $(BIN)/playwright install --with-deps chromium
	OPENFATE_SCREENSHOTS=1 $(BIN)/pytest -n 0 -m slow tests/serving/test_page.py

# Less than ten minutes: spoilt bundles and files of rows, see docs/security.md.
# One thread a worker: each core has a worker already.  Polars' panics would look for their lines.
fuzz: .venv/all
	OMP_NUM_THREADS=1 POLARS_MAX_THREADS=1 RUST_BACKTRACE=0 $(BIN)/python tests/fuzz

# Five minutes: the service against its OpenAPI description.  WHY an environment of its own:
# schemathesis wants other versions of what the tests were pinned with.
fuzz-service: .venv/all .venv-schemathesis
	OPENFATE_SCHEMATHESIS=$(CURDIR)/.venv-schemathesis/bin/schemathesis $(BIN)/pytest -n 0 -m slow tests/serving/test_openapi.py

.venv-schemathesis:
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install -q schemathesis

check: .venv/all
	$(BIN)/ruff format --check openfate openfate_lab tests benchmarks examples .ci hatch_build.py
	$(BIN)/ruff check openfate openfate_lab tests benchmarks examples .ci hatch_build.py
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/all
	$(BIN)/openfate bench train

docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo site/index.html

lines:
	$(PYTHON) .ci/lines.py

release-check: .venv/bin/python
	$(BIN)/python .ci/release_check.py

install: .venv/all

# constraints.txt pins what was tested; without it pip would take torch with gigabytes of CUDA.
.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/core: .venv/bin/python pyproject.toml constraints.txt hatch_build.py openfate/native.c
	$(BIN)/python -m pip install -q -c constraints.txt -e .
	touch $@

.venv/all: .venv/core
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev,peers,export,track]'
	touch $@

.venv/docs: .venv/core
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[docs]'
	touch $@

clean:
	rm -rf .venv site
