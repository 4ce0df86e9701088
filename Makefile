PYTHON ?= python3
SEEDS  ?= 1000
KILLS  ?= 6
HOURS  ?= 1
SEED   ?=
ROWS   ?=

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
CODE  := $(wildcard src tests examples)
BENCH := src/semel_bench

# What the tests and the demo need. It includes Java, for machines without one.
EXTRAS := dev,spark,pipelines,delta,postgres,jwt,webhooks,spark-jre

# A part of `make test`; the seconds of each are printed at the end.
PART := $(BIN)/python -m tests.parts

# The public conformance suite, the official client and the reference server run on node; without
# node their tests are skipped.
NODE := build/conformance/.installed build/interop/.installed

# The public suite for clients, which `make test` does not need. CLIENT_SUITE is the command of
# another copy of it.
SUITE := $(if $(CLIENT_SUITE),,build/client_suite/.installed)

# What must be covered branch by branch: the parts whose bugs would stay unnoticed.
PROVEN := src/semel/model/*,src/semel/machine/*,src/semel/wire/*,src/semel/journal/frame.py

# About half of the unit tests, by time.
UNIT_FIRST := $(addprefix tests/unit/,broker journal machine model server wire)

.DEFAULT_GOAL := help
.PHONY: help install postgres chromium xfs demo test cover cover-first cover-rest spark spark-torture sharing wakes client-suite check format facades rows row-mutants sim soak bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## create .venv and install the project into it

$(STAMP): pyproject.toml $(BENCH)/pyproject.toml
	@echo "installing into $(VENV) (minutes on a fresh machine: Spark alone is a download of 456 MB)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(EXTRAS)]' -e $(BENCH)
	@touch $@

# One example writes to PostgreSQL; without it that test is skipped. It is installed
# only on Debian, as root.
POSTGRES := $(wildcard /usr/lib/postgresql/*/bin/initdb)
postgres:
	@if [ -z "$(POSTGRES)" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing PostgreSQL for one of the examples" && \
	  { apt-get update; DEBIAN_FRONTEND=noninteractive apt-get install -y postgresql; } \
	  >/dev/null 2>&1 || \
	  echo "PostgreSQL cannot be installed: its example is skipped"; fi

# The tests with hostile web pages need a browser; without it they are skipped. It is installed
# only on Debian, as root.
chromium:
	@if command -v chromium >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing chromium for tests/browser" && \
	  { apt-get update; DEBIAN_FRONTEND=noninteractive apt-get install -y chromium; } \
	  >/dev/null 2>&1 || \
	  echo "chromium cannot be installed: tests/browser is skipped"; \
	else echo "chromium is missing, and only root can install it: tests/browser is skipped"; fi

# `make soak` cuts the power of ext4 and xfs. Without mkfs.xfs, which is installed only on Debian, as
# root, the rounds with xfs are skipped.
xfs:
	@if ! command -v mkfs.xfs >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing xfsprogs for power cuts on xfs" && \
	  { apt-get update; DEBIAN_FRONTEND=noninteractive apt-get install -y xfsprogs; } \
	  >/dev/null 2>&1 || \
	  echo "xfsprogs cannot be installed: the power cuts on xfs are skipped"; fi

# No lock file: it would record where the packages were downloaded.
$(NODE) build/client_suite/.installed: build/%/.installed: tests/%/package.json
	@mkdir -p $(@D) && cp $^ $(@D)
	@if command -v node >/dev/null && command -v npm >/dev/null; then \
	  echo "installing what tests/$* needs into $(@D)" && \
	  npm install --no-package-lock --no-audit --no-fund --loglevel=error --prefix $(@D) && touch $@; \
	else echo "node or npm is missing: tests/$* is skipped"; fi

build/conformance/.installed: tests/conformance/suite.test.mjs

demo: $(STAMP) ## exactly once through lost responses, kills and Spark; takes minutes
	@echo "examples/quickstart.py:" && $(BIN)/python examples/quickstart.py
	@$(BIN)/semel demo --force

test: $(STAMP) $(NODE) chromium ## the coverage gate, every test, Spark, the bad network, the simulator
	@rm -f build/parts.txt
	@$(PART) cover $(MAKE) cover
	@$(PART) tests $(BIN)/python -m pytest -n 3 --durations=15 --ignore=tests/unit --ignore=tests/spark tests
	@$(PART) row-mutants $(MAKE) row-mutants
	@$(PART) spark $(MAKE) spark
	@$(PART) faults $(BIN)/python -m tests.faults
	@$(PART) transactions $(BIN)/python -m tests.transactions
	@$(PART) sim $(BIN)/python -m tests.sim --seeds $(SEEDS)
	@$(PART)

# The unit tests run in two processes, because one of them uses one core only.
cover: $(STAMP) ## unit tests; fails below 100 % branch coverage of the pure core
	@$(BIN)/python -m coverage erase
	@$(MAKE) --no-print-directory -j 2 cover-first cover-rest
	@$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report --include='$(PROVEN)' --fail-under=100

cover-first: $(STAMP)
	$(BIN)/python -m coverage run -p -m pytest -q $(UNIT_FIRST)

cover-rest: $(STAMP)
	$(BIN)/python -m coverage run -p -m pytest -q tests/unit $(UNIT_FIRST:%=--ignore=%)

spark: $(STAMP) postgres ## the tests that need a JVM, one after another in one session
	$(BIN)/python -m pytest --durations=15 tests/spark

spark-torture: $(STAMP) ## kill Spark's driver again and again: make spark-torture KILLS=20
	$(BIN)/python -m tests.spark.torture --kills $(KILLS)

# Of all kills, a third are of the server.
sharing: KILLS = 30
sharing: $(STAMP) ## kill the workers of a group, and the server: make sharing KILLS=30 SEED=7
	$(BIN)/python -m tests.sharing --kills $(KILLS) $(if $(SEED),--seed $(SEED))

wakes: KILLS = 20
wakes: $(STAMP) ## kill the workers and receivers of subscriptions: make wakes KILLS=20 SEED=7
	$(BIN)/python -m tests.wakes --kills $(KILLS) $(if $(SEED),--seed $(SEED))

client-suite: $(STAMP) $(SUITE) ## the public suite of the protocol for clients, with both our clients
	@$(BIN)/python -m tests.interop.client_suite

check: $(STAMP) ## lint, format, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict $(CODE)
	$(BIN)/lint-imports

format: $(STAMP) ## fix and format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

facades: $(STAMP) ## generate the sync client from the async one
	$(BIN)/python -m tests.facades

rows: $(STAMP) ## the promises of the source documents and the tests that show each
	@$(BIN)/python -m tests.rows

row-mutants: $(STAMP) ## bugs that break these promises: some of them with make row-mutants ROWS='D03 R24'
	@$(BIN)/python -m tests.rows --mutants $(ROWS)

sim: $(STAMP) ## simulate the engine: make sim SEEDS=1000
	$(BIN)/python -m tests.sim --seeds $(SEEDS)

soak: $(STAMP) xfs ## kills, crash images, damage and power cuts by the hour: make soak HOURS=1 SEED=7
	$(BIN)/python -m tests.soak --hours $(HOURS) $(if $(SEED),--seed $(SEED))

bench: $(STAMP) ## measure everything, or some: make bench NAMES='append engine'
	$(BIN)/python -m semel_bench $(NAMES)

clean: ## remove the environment and everything generated
	rm -rf $(VENV) .coverage .coverage.* htmlcov build dist .hypothesis .import_linter_cache
	rm -rf .mypy_cache .pytest_cache .ruff_cache
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
