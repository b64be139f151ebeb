# Linux and macOS; on Windows, through WSL. Needs Python 3.10 or newer and nothing else:
# every target makes what it needs in .venv.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip install --disable-pip-version-check -c constraints.txt
# Inside a container the user is often root, and JupyterLab then wants to be asked twice.
ROOT   := $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: help lab test grading doctor solutions release assets site format clean

help:  ## show this list
	@awk -F ':.*## *' '/^[a-z]+:.*##/ {printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

lab: $(VENV)/.installed  ## install into .venv and open the first lab in JupyterLab
	$(PY) -m jupyter lab $(ROOT) labs/pp_lab.ipynb

# The labs mostly wait for kernels and ranks, so they run beside the other tests.
LABS := tests/test_notebooks.py tests/test_course_zoo.py
test: $(VENV)/.installed-test  ## unit tests, the labs unsolved, the solutions, the browser check
	@log=$$(mktemp); trap 'rm -f "$$log"; kill $$beside 2>/dev/null' EXIT; \
	trap 'exit 130' INT TERM; \
	echo "The labs run at the same time; what they say follows at the end."; \
	$(PY) -m pytest -p no:cacheprovider solutions $(LABS) >"$$log" 2>&1 & beside=$$!; \
	$(PY) -m pytest tests $(addprefix --ignore=,$(LABS)); rest=$$?; \
	wait $$beside; labs=$$?; cat "$$log"; \
	exit $$((rest ? rest : labs))

grading: $(VENV)/.installed-test  ## the grader on abused notebooks and against nbgrader, minutes
	PP_LAB_GRADING=yes PYTHONPATH=tests $(PY) -m pytest tests/test_grade_*.py

doctor: $(VENV)/.installed  ## does this machine have what the labs need?
	@$(PY) -m pp_lab.doctor

solutions: $(VENV)/.installed  ## run every solution and save what it prints
	$(PY) -m jupyter nbconvert --to notebook --execute --inplace \
	  --ExecutePreprocessor.record_timing=False solutions/*.ipynb

release: $(VENV)/.installed  ## write labs/ from solutions/
	@$(PY) -m pp_lab.release

assets: $(VENV)/.installed  ## draw the pictures in assets/ again
	@$(PY) -m pp_lab.show.assets

site: $(VENV)/.installed-site  ## the course as pages, in _site/; nothing is run, and no internet needed
	@$(PY) site/build.py _site

format: $(VENV)/.installed-test  ## put the Python files into the project's form
	$(PY) -m ruff check --fix
	$(PY) -m ruff format

clean:  ## remove .venv and what tests and tools leave behind
	rm -rf $(VENV) _site *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
	find . -name .ipynb_checkpoints -prune -exec rm -rf {} +

# .installed is newer than pyproject.toml and constraints.txt when there is nothing to install.
$(VENV)/.installed: pyproject.toml constraints.txt
	@command -v "$(PYTHON)" >/dev/null || { \
	  echo "There is no $(PYTHON) here: install Python 3.10 or newer, or name one: make lab PYTHON=python3.12"; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "$(PYTHON) is $$("$(PYTHON)" -V 2>&1), and pp_lab needs 3.10 or newer: name another: make lab PYTHON=python3.12"; exit 1; }
	@"$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) has no venv module: on Debian or Ubuntu, sudo apt install python3-venv, then again"; exit 1; }
	@$(PY) -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear $(VENV)
	@echo "Installing into $(VENV); torch is large, so the first time takes some minutes."
	$(PIP) -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) -e '.[test]'
	@touch $@

$(VENV)/.installed-site: $(VENV)/.installed
	$(PIP) -e '.[site]'
	@touch $@
