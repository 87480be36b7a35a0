# Every target sets up what it needs in .venv, from a fresh clone, and the second call skips that.
#
#   PYTHON=…                 the interpreter to build .venv with (3.11 or newer)
#   ARGS=…                   further words for `distconsole demo`
#   RERUNS=…                 how often a failed test is tried again (0); the summary counts them
#   WORKERS=…                how many tests go on at once (6)
#   TESTS=…                  what pytest runs, and how:  make test TESTS="tests/unit -x"
#   BENCH=…                  which figures, and how many rounds:  make bench BENCH="--quick --only start"
#   CAMPAIGN=…               how long, which cases:  make campaign CAMPAIGN="--minutes 30 --only mpi"
#   LEAGUE=…                 which cases, and where to:  make league LEAGUE="--quick --only hang"
#   DIFFERENTIAL=…           which suites, and where to:  make differential DIFFERENTIAL="--only horovod"
#   PLATFORMS=…              which platforms:  make platforms PLATFORMS="--only trixie --page docs/compatibility.md"
#   FUZZ=…                   which targets, how long, and from where on:  make fuzz FUZZ="--only hostfile --seconds 60 --resume"
#   DISTCONSOLE_DEV_CACHE=…  where the Horovod wheel is kept (~/.cache/distconsole-dev)

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# What is compiled once is not compiled again by each worker and each run.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help demo test set-up campaign permutations platforms differential check man package pages docs bench league screenshots gallery fuzz clean horovod mpich system

VENV := .venv
BIN := $(VENV)/bin
# Compiling all of torch takes longer than installing it; an import compiles the tenth that is used.
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q --no-compile -c .ci/constraints.txt
DONE := .make
TESTS ?= tests
# A test that fails once in a hundred is a defect with a name.
RERUNS ?= 0
# Those that drive hosts wait more than they work: with four, two cores are busy for 83 % of the time.
# Each further one costs 9 s of a core, in which it collects the tests.
WORKERS ?= 6
TYPED := console agents training tests/testbed tests/suite tests/conftest.py
INPUTS := pyproject.toml .ci/constraints.txt

help: ## Show this
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

demo: $(DONE)/demo ## Check two embedded nodes, then watch them train
	@$(BIN)/distconsole demo --torch $(ARGS)

test: set-up ## Run every test; what this machine lacks is skipped by name
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --reruns $(RERUNS) $(TESTS)

campaign: system $(DONE)/dev horovod ## Runs with a random fault each, on simulated hosts: the table of docs/reliability.md
	PYTHONPATH=tests $(BIN)/python -m campaign $(CAMPAIGN)

permutations: ## Run every test, also the permutations that no change needs: TIMES=10 gives the rate of flakes
	for time in $$(seq $${TIMES:-1}); do $(MAKE) test TESTS="--campaign $(TESTS)" || failed=1; done; test -z "$${failed:-}"

platforms: system $(DONE)/dev ## Try the same claims on other Debians, Pythons, torches and MPIs (hours): the table of docs/compatibility.md
	PYTHONPATH=tests $(BIN)/python -m platforms $(PLATFORMS)

differential: system $(DONE)/dev horovod ## Run other people's test suites bare and watched: the table of docs/reference/hook.md
	PYTHONPATH=tests $(BIN)/python -m differential $(DIFFERENTIAL)

check: $(DONE)/dev ## Format, lint, types, layers, and the measures of .ci/house.json, which only fall
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(TYPED)
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin --exclude node_programs console/distconsole
	$(BIN)/lint-imports
	PYTHONPATH=tests $(BIN)/python -m suite.house

man: $(DONE)/dev ## Write the manual pages, made of the grammar: build/man
	@PYTHONPATH=tests $(BIN)/python -m suite.man_pages

package: man ## Build wheel and sdist with the manual pages, install each in an empty environment, and try it
	rm -rf dist
	$(BIN)/python -m hatchling build
	.ci/try-package

pages: $(DONE)/dev ## Write the pages of docs/reference that are made of the source
	PYTHONPATH=tests $(BIN)/python -m suite.cli_page

docs: $(DONE)/docs pages ## Build the documentation as a site: build/docs/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: system $(DONE)/dev horovod $(DONE)/peers ## Measure: the figures of docs/benchmarks.md
	PYTHONPATH=tests $(BIN)/python -m benchmarks $(BENCH)

league: system $(DONE)/dev horovod ## Train with seeded faults, and see who is named: the table of docs/reliability.md
	PYTHONPATH=tests $(BIN)/python -m league $(LEAGUE)

screenshots: $(DONE)/dev ## Take the pictures of README and docs anew, of real runs
	$(BIN)/python tests/tui/screenshots.py docs/images

gallery: $(DONE)/dev ## Draw every view in every state, size and look: build/gallery/index.html (VIEWS="heat or compare": only these)
	$(BIN)/python tests/tui/gallery.py $(if $(VIEWS),-k "$(VIEWS)",-n $(WORKERS))

fuzz: $(DONE)/dev ## Try what nobody would write on all that reads foreign input: FUZZ="--seconds 60 --only hostfile"
	PYTHONPATH=tests $(BIN)/python -m fuzz $(FUZZ)

clean: ## Remove what these targets made in this folder
	rm -rf $(VENV) $(DONE) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(DONE)/venv:
	@python=$$(.ci/python) && "$$python" -m venv --clear $(VENV)
	@mkdir -p $(DONE) && touch $@

$(DONE)/demo: $(DONE)/venv $(INPUTS)
	@echo "set-up: installing distconsole and torch into $(VENV)" >&2
	@$(PIP) -e '.[training]' </dev/null
	@touch $@

$(DONE)/dev: $(DONE)/venv $(INPUTS)
	@echo "set-up: installing distconsole, torch and the tools into $(VENV)" >&2
	@$(PIP) -e '.[training,dev]' </dev/null
	@touch $@ $(DONE)/demo

$(DONE)/docs: $(DONE)/dev
	@$(PIP) -e '.[docs]' </dev/null
	@touch $@

# What the hook is measured beside; torch is that of .venv.
$(DONE)/peers: $(DONE)/dev
	@$(BIN)/python -m venv --clear build/peers
	@$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > $$(ls -d build/peers/lib/python*/site-packages)/torch.pth
	@build/peers/bin/python -m pip --disable-pip-version-check install -q traceml-ai==0.5.0 wandb </dev/null
	@touch $@

# The system's packages and pip's come at once, and Horovod is compiled beside the rest.
set-up:
	@$(MAKE) --no-print-directory -j3 system horovod mpich $(DONE)/collected

system:
	@.ci/system-packages

# In a fresh clone pytest compiles each test file for its assertions: once here, else in each worker.
$(DONE)/collected: $(DONE)/dev
	@$(BIN)/python -m pytest --collect-only -qq tests >/dev/null || true
	@touch $@

# Without Horovod the tests go on, and those that need it are skipped.
horovod: system $(DONE)/dev
	@$(MAKE) --no-print-directory $(DONE)/horovod || echo "set-up: going on without Horovod" >&2

$(DONE)/horovod: $(DONE)/dev .ci/horovod-wheel
	@$(PIP) setuptools wheel packaging cffi cloudpickle psutil pyyaml </dev/null
	@wheel=$$(.ci/horovod-wheel $(BIN)/python) && $(PIP) "$$wheel" </dev/null
	@touch $@

# A second MPI, for the tests of hosts that have two. Its mpirun must be on no PATH but theirs.
mpich: $(DONE)/dev
	@$(MAKE) --no-print-directory $(DONE)/mpich || echo "set-up: going on without a second MPI" >&2

$(DONE)/mpich: $(DONE)/dev
	@rm -rf $@.part && $(PIP) --no-deps --no-warn-script-location --prefix $@.part mpich </dev/null
	@mv $@.part $@
