# Everything that you do with this repository, one target each. `make` alone lists them.

PYTHON ?= python3
BIN := .venv/bin
TYPED := server/src client/src server/tests bench
# One version of each dependency for every Python and platform that we support, and no trace of who locked it.
COMPILE := UV_CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url

.DEFAULT_GOAL := help
.PHONY: help setup check test soak dev bench lock

help:  ## list the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/\1\t\2/' | expand -t 12

setup:  ## build .venv from the pinned requirements, with server and client in it (PYTHON=python3.12 to choose one)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	$(BIN)/uv pip sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes requirements/dev.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e server -e client

check:  ## lint, format, types and import contracts; changes nothing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy $(TYPED)
	$(BIN)/mypy client/tests
	$(BIN)/lint-imports --no-logo

test:  ## every test (ARGS="-k name -x" to choose)
	$(BIN)/pytest $(ARGS)

soak:  ## the tests of consistency and idempotency in full size, with a line of report for each run; about fifteen minutes
	PLAINSQL_TEST_TRANSACTIONS=26000 PLAINSQL_TEST_FAULTS=5 PLAINSQL_TEST_TRANSACTIONS_BETWEEN_FAULTS=500 \
	PLAINSQL_TEST_CONTROL_TRANSACTIONS=3000 PLAINSQL_TEST_INCREMENTS=5000 \
	PLAINSQL_TEST_KEYS=1000 PLAINSQL_TEST_KEY_KILLS=5 PLAINSQL_TEST_LOST_COMMITS=102 PLAINSQL_TEST_LOST_COMMIT_KILLS=5 \
		$(BIN)/pytest -q -s server/tests/consistency server/tests/end_to_end/test_idempotency_races.py \
		server/tests/end_to_end/test_lost_commits.py $(ARGS)

dev:  ## start the whole service on this machine, its state in ./.plainsql (ARGS="--no-tls" for options)
	$(BIN)/plainsql-server dev $(ARGS)

bench:  ## measure the service beside the bare engine
	$(BIN)/python -m bench $(ARGS)

lock:  ## pin again after a change of requirements; versions stay where they can (UPGRADE=1 for the newest)
	$(COMPILE) $(if $(UPGRADE),--upgrade) requirements/uv.in -o requirements/uv.txt
	$(COMPILE) $(if $(UPGRADE),--upgrade) server/pyproject.toml -o requirements/server.txt
	$(COMPILE) $(if $(UPGRADE),--upgrade) server/pyproject.toml client/pyproject.toml --extra dev --extra sqlalchemy requirements/dev.in \
		-c requirements/uv.txt -c requirements/server.txt -o requirements/dev.txt
