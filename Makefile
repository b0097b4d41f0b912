# `make demo` and `make test` do all their own set-up; `make check` runs before every commit.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.complete
JOBS ?= 6
# Byte code is kept, whatever the shell says: without it every worker and server compiles for seconds. The tests read
# and write texts of the tree, which is UTF-8 in every locale.
ALONE := env -u PYTHONDONTWRITEBYTECODE PYTHONUTF8=1 $(PY) -m pytest
PYTEST = $(ALONE) -n $(JOBS) --dist loadfile

# Parts run beside each other; what one says is kept together.
BESIDE := $(MAKE) --no-print-directory -j2 --output-sync=target
LINT := lint-types lint-house lint-format lint-pages lint-console
# Processes that share the fast tests without xdist: each reads its own files alone, not all.
CHECK := check-1 check-2 check-3 check-4

.PHONY: help setup demo demo-kafka test test-interpreted test-long test-kafka check $(CHECK) lint lint-format lint-types lint-house lint-pages lint-console console-types format bench site charts wheels clean

help:
	@echo "make demo    run the main job: send, kill -9, consume, prove; order keys, dead letters, resend"
	@echo "make demo-kafka  the same on three Kafka brokers, one of which is killed (needs Java, and Maven once)"
	@echo "make test    every test but the longest, JOBS=6 files at a time (TESTS=tests/unit: those of a folder)"
	@echo "make test-interpreted  some of them on the sources of what runs compiled"
	@echo "make test-long  the longest (see docs/testing.md)"
	@echo "make test-kafka  contract, recordings, scenarios, commands on a real Kafka broker (needs Java, and Maven once)"
	@echo "make check   format, lint, types, import contracts, fast tests (before every commit)"
	@echo "make bench   every benchmark, with floors (see docs/performance.md)"
	@echo "make site    the documentation as a website, in build/site: search, light and dark, no request to another host"
	@echo "make wheels  build the wheels into dist/ and try each on Python 3.11 to 3.14 (WHEELS='3.12 --require-all')"
	@echo "make console-types  check the types of the console's modules against the admin API (needs node, and npm once)"
	@echo "make charts  render the Helm chart into conf/kubernetes and validate it (needs Go)"
	@echo "make setup   fill .venv, and compile the modules of a message's way that were edited since (others do it themselves, but for check)"

setup: $(STAMP)
	@$(PY) tools/compile.py

$(STAMP): requirements.lock pyproject.toml tools/setup.py
	@command -v $(PYTHON) >/dev/null || { echo "missing: $(PYTHON). Install Python 3.11 or newer, or run: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) tools/setup.py $(VENV)
	@touch $(STAMP)

demo: setup
	@$(PY) -m ddmq demo

demo-kafka: setup
	@$(PY) -m ddmq demo --kafka

TESTS ?=
test: setup
	$(PYTEST) -m "not long and not kafka" $(TESTS)

# The sources of what runs compiled: what others rely on, kills and faults, and what reaches into a compiled class.
# Old clients at a listener with rights (`legacy`) have passed in `make test`.
test-interpreted: $(STAMP)
	DDMQ_COMPILED=0 $(PYTEST) -m "not long and not kafka" -k "not legacy" tests/contract tests/interop tests/crash
	DDMQ_COMPILED=0 $(ALONE) -m interpreted

KAFKA_TESTS ?= tests
# Another release of the broker, such as 3.3.2; empty: the one of ddmq/trial/jars.py.
KAFKA_VERSION ?=
test-kafka: setup
	KAFKA_VERSION=$(KAFKA_VERSION) $(PYTEST) -m "kafka and not long" $(KAFKA_TESTS)

test-long: setup
	$(PYTEST) -m "long and not kafka"

$(CHECK): $(STAMP)
	@$(ALONE) --part $(@:check-%=%)/$(words $(CHECK)) -m "not slow"

check: $(STAMP)
	@$(MAKE) --no-print-directory -j4 --output-sync=target $(CHECK) $(LINT)

lint: $(STAMP)
	@$(BESIDE) $(LINT)

lint-format: $(STAMP)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .

lint-types: $(STAMP)
	$(VENV)/bin/mypy

# Which package may import which, names, and what must not grow back.
lint-house: $(STAMP)
	@$(VENV)/bin/lint-imports > .import-contracts 2>&1 || { cat .import-contracts; exit 1; }
	@grep "^Contracts: " .import-contracts; rm .import-contracts
	$(PY) tools/check_house.py

lint-pages: $(STAMP)
	$(PY) tools/metrics_page.py --check
	$(PY) tools/bounds.py --check
	$(PY) tools/server_lock.py --check
	$(PY) tools/states_page.py --check
	$(PY) tools/admin_page.py --check
	$(PY) tools/rights_page.py --check
	$(PY) tools/dashboard.py --check
	$(PY) tools/alerts.py --check
	$(PY) tools/unasync.py --check
	$(PY) tools/check_pages.py
	$(PY) tools/promises.py --check

# The console's modules, if node and tsc are there; console-types fetches tsc from npm once.
lint-console: $(STAMP)
	$(PY) tools/console_types.py

console-types: $(STAMP)
	@$(PY) tools/console_types.py --install

format: $(STAMP)
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

bench: setup
	$(PY) -m ddmq bench all

# Pages are read in place; a warning, such as a link without a target, is an error.
site: $(STAMP)
	@$(PY) -m sphinx -q -W --keep-going -b html -c docs/site . build/site
	@echo "build/site/index.html"

# uv finds the Pythons, or fetches them, and builds; it is installed once. One to two minutes for each Python.
WHEELS ?=
wheels: $(STAMP)
	@[ -x $(VENV)/bin/uv ] || $(PY) -m pip install --quiet --require-hashes -r packaging/wheels.lock
	@$(PY) tools/wheels.py $(WHEELS)

# Helm and kubeconform are built from their Go modules, once (two to three minutes).
charts: $(STAMP)
	@[ -x $(VENV)/bin/helm ] || $(PY) -m tools.charts --install
	@$(PY) -m tools.charts
	@$(PYTEST) tests/unit/operations/test_chart.py

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis ddmq_common/_compiled
