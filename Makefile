# Sets up what it needs in .venv: `make demo` and `make test` work on a fresh machine that has
# Python 3.11 or newer with the venv module.
#
#   make demo        four acts beside stock Dask       DEMO_ARGS="--fast" for a short one
#   make test        linters, types, tests, three processes at a time    PYTEST_ARGS="-k trace" to choose tests
#   make coverage    the same tests, and which lines none of them runs
#   make test-slow   the tests that take longer: workers and clusters that are ended from outside, real Slurm,
#                    and all examples of every property, of which `make test` tries a part;
#                    SUBSET=0.12 for that share of them, drawn by SUBSET_SEED (default: the commit)
#   make test-browser  the panel in a real JupyterLab in headless Chromium; SCREENSHOTS=folder keeps the pictures
#   make screenshots  the same, and the pictures in the README anew: the panel, and three users before and after
#   make test-previous  the tests on live clusters with the release of distributed before the newest, and the least
#                    of others that is asked for, or a SUBSET
#   make test-distributed  some of distributed's own tests, on stock and with our preload, and what differs; cloned
#                    from its repository    TEST_DISTRIBUTED_FILES="test_locks test_queues" to choose
#   make mutants     breaks chosen lines, one at a time, and lists those that no test notices
#   make lint        linters and types alone
#   make benchmarks  measured claims, with their bars   BENCHMARK_ARGS="--fast" for short ones
#                    and the notebooks of published studies, whose results are kept beside them
#   make notebooks   the stories in notebooks/ run again, their outputs kept    STORIES="01_quickstart" to choose
#                    (with a Slurm of their own, for which Debian's slurm-wlm and munge must be installed)
#   make binder      what Binder builds, by pip in a fresh environment; runs the tour there, measures its memory
#   make clean       removes all that is generated
#
# PYTHON=python3.12 chooses the interpreter, VENV=path the place of the environment.

PYTHON ?= python3
VENV ?= .venv
DEMO_ARGS ?=
PYTEST_ARGS ?=
# Tests of live clusters wait for half of their time: three processes are what two cores can do. Slow ones start
# many processes themselves, and are about time now and then: two.
TEST_PROCESSES ?= 3
SUBSET ?= 1
SUBSET_SEED ?= $(shell git rev-parse --short HEAD 2>/dev/null || echo 0)
SCREENSHOTS ?=
BENCHMARK_ARGS ?=
MUTANTS_ARGS ?=
TEST_DISTRIBUTED_FILES ?=
STORIES ?=
NOTEBOOK_ARGS ?= $(filter --fast,$(BENCHMARK_ARGS))
BIN := $(VENV)/bin
PREVIOUS := 2026.7.1
# The least that is asked for of what others do otherwise by release, and runs on any Python.
LEAST := $(shell sed -nE 's/.*"(click|jinja2|pulp|xarray|zarr) >=([0-9.]+)[",].*/\1==\2/p' pyproject.toml | sort -u)

# Hundreds of processes are started here: what the first has compiled, the others read.
unexport PYTHONDONTWRITEBYTECODE

.NOTPARALLEL:
.PHONY: demo test coverage mutants test-slow test-browser screenshots test-previous test-distributed lint benchmarks notebooks binder clean

demo: $(VENV)/.demo
	$(BIN)/dask hpc demo $(DEMO_ARGS)

# Tests of a file share clusters, so a file is run by one process. Files begin in their order.
DISTRIBUTED = -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder --hypothesis-seed $(SUBSET_SEED)
PYTEST = $(BIN)/python $(DISTRIBUTED)

# None of those in a browser run here, and what they import takes each process a while.
# What they are made of is compiled beside the linters by one process: else each of three does it for itself.
test: $(VENV)/.test
	@$(BIN)/python -m pytest --collect-only -q --ignore=tests/browser >/dev/null 2>&1 & \
	  $(MAKE) lint; found=$$?; wait; exit $$found
	$(PYTEST) --ignore=tests/browser $(PYTEST_ARGS)

# Watching every line takes half as long again.
coverage: $(VENV)/.test
	$(PYTEST) --cov --cov-report=term $(PYTEST_ARGS)

mutants: $(VENV)/.test
	$(BIN)/python tests/tools/mutants.py $(MUTANTS_ARGS)

# These take longest and begin first, so that no process is left alone with one of them.
LONGEST := benchmarks/test_benchmarks parity/test_parity_esp slurm/test_cluster widgets/test_beginner \
  checkpoint/test_session_hosts chaos/test_chaos notebooks/test_stories sim/test_io_aware_runs \
  scheduler/test_memory_levels demo/test_demo

# Only files that have such tests are loaded.
test-slow: $(VENV)/.test
	$(PYTEST) -n 2 -m 'slow or hypothesis' --examples 1 $(LONGEST:%=tests/%.py) \
	  $$(grep -rlE --include='test_*.py' 'mark\.slow|^from hypothesis' tests) \
	  --subset $(SUBSET) --subset-seed $(SUBSET_SEED) $(PYTEST_ARGS)

test-browser: $(VENV)/.test
	$(if $(SCREENSHOTS),DASK_HPC_SCREENSHOTS='$(SCREENSHOTS)') $(BIN)/python -m pytest -m browser tests/browser $(PYTEST_ARGS)

screenshots: $(VENV)/.test
	DASK_HPC_SCREENSHOTS=build/screenshots $(BIN)/python -m pytest -m browser tests/browser $(PYTEST_ARGS)
	cp build/screenshots/panel.png notebooks/images/panel.png
	$(BIN)/python tests/tools/before_after.py notebooks/images/before-after.png

# Tests of live clusters, but for those that rest on nothing in Dask that others here do not rest on too: what hosts
# hold of versions, what survives their loss, and sensors.
ELSEWHERE := corridor dtypes_live every_loss forecasts_live kept_versions memory_levels power_account power_caps \
  power_forecast served_memory services_live silent_workers taken_over

test-previous: $(VENV)-previous/.test
	$(VENV)-previous/bin/python $(DISTRIBUTED) tests/scheduler tests/client tests/program \
	  $(ELSEWHERE:%=--ignore=tests/scheduler/test_%.py) \
	  --subset $(SUBSET) --subset-seed $(SUBSET_SEED) $(PYTEST_ARGS)
	$(VENV)-previous/bin/python -m dask hpc no-such 2>&1 | grep '^Error: No such command'

test-distributed: $(VENV)/.test
	$(BIN)/python tests/tools/distributed_tests.py $(TEST_DISTRIBUTED_FILES)

lint: $(VENV)/.test
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

benchmarks: $(VENV)/.test
	$(BIN)/python notebooks/run.py $(NOTEBOOK_ARGS)
	$(BIN)/python tests/benchmarks/run.py $(BENCHMARK_ARGS)

notebooks: $(VENV)/.test
	$(BIN)/python tests/tools/with_slurm.py $(BIN)/python notebooks/run.py --stories $(STORIES)

binder: $(VENV)/.test
	$(BIN)/python binder/check.py

# A change of pyproject.toml makes the environment anew, so that it never holds what is no longer asked for.
$(VENV)/.made: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "dask-hpc needs Python 3.11 or newer; choose one with make PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

$(VENV)/.demo: $(VENV)/.made
	$(BIN)/python -m pip install --quiet --editable '.[plot,checkpoint]'
	touch $@

$(VENV)/.test: $(VENV)/.made
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

# It has only its own of those, which come first; all others are those of the environment beside it.
PACKAGES := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
$(VENV)-previous/.test: $(VENV)/.test
	test $(words $(LEAST)) -eq 5
	$(PYTHON) -m venv --clear $(VENV)-previous
	echo "import site; site.addsitedir('$$($(BIN)/python $(PACKAGES))')" \
	  > "$$($(VENV)-previous/bin/python $(PACKAGES))/others.pth"
	$(VENV)-previous/bin/python -m pip install --quiet "distributed==$(PREVIOUS)" "dask==$(PREVIOUS)" $(LEAST)
	$(VENV)-previous/bin/python -c 'import dask, distributed, pytest; \
	  raise SystemExit({dask.__version__, distributed.__version__} != {"$(PREVIOUS)"})'
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-previous build dist .coverage .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
