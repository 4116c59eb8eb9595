# The first target that needs it makes .venv and installs vitkit there; later ones find it done.
SUITS = -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python $(SUITS) && echo $$python && exit; done; echo python3)
BIN = .venv/bin
INSTALLED = .venv/.installed
DOCS = .venv/.docs

# One thread per test process: two processes with a thread pool each would fight for the cores.
# Whoever is done first takes over from the other.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal -q --durations=10
FAST = not slow and not gpu and not browser
REST = (slow or browser) and not gpu

.PHONY: help test test-slow lint format settings docs quickstart clean

help:
	@echo "make test        set up .venv and run the fast tests"
	@echo "make test-slow   run the slow tests, and the pages in a browser if Chromium is there"
	@echo "make lint        check format, style and types"
	@echo "make format      put files into the format"
	@echo "make settings    write vitkit/settings.py from the config dataclasses"
	@echo "make docs        build the documentation as a site: site/index.html"
	@echo "make quickstart  pre-train, fine-tune and compare: three to four minutes on two cores"
	@echo "make clean       remove .venv and caches"

test: $(INSTALLED)
	@$(PYTEST) -m "$(FAST)"

test-slow: $(INSTALLED)
	@$(PYTEST) -m "$(REST)"

lint: $(INSTALLED)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

format: $(INSTALLED)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

settings: $(INSTALLED)
	@$(BIN)/python -m tests.write_settings

# The variable silences a notice of the theme about the successor of MkDocs.
docs: $(DOCS)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

quickstart: $(INSTALLED)
	@$(BIN)/vit quickstart

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info build dist site

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) $(SUITS) || { echo "vitkit needs Python 3.11, 3.12 or 3.13; $(PYTHON) is not: make test PYTHON=/path/to/python"; exit 2; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@echo "Installing vitkit into .venv: the first time takes minutes and about 6 GB"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

$(DOCS): $(INSTALLED)
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	@touch $@
