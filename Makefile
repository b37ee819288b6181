# Needs Python 3.11 or newer and make; the first target that runs creates .venv.
#   make demo    a demonstration in about a minute
#   make test    the tests
#   make check   lint, types, packages and tests, as in CI
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
COVERED := 97
LONG    := --long -o faulthandler_timeout=7200

# Use the optional data folder if it exists.
ifneq ($(wildcard ../shared/data/README.md),)
export VERITRACER_DATA ?= $(abspath ../shared/data)
endif

# pip does not compile modules; Python compiles each one when it is first imported. This halves the installation.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test check bare bare-demo lint types dist coverage format docs outputs long kernels faults serve-bench adversary integrations minimum site bench clean

demo: $(READY)
	$(BIN)/veritracer demo --force

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile

# Types and packages are checked in parallel with the tests, which do not keep all cores busy.
check: lint
	$(MAKE) --jobs=3 types dist test

# Run the README's commands on HEAD in a minimal Debian chroot. Needs root and debootstrap; takes ten minutes or more.
bare:
	tools/bare.sh make test

bare-demo:
	tools/bare.sh make demo

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	nice -n 19 $(BIN)/mypy

# Build wheel and sdist as for a release, and check their contents.
dist: $(READY)
	rm -rf out/dist
	$(BIN)/python -m build --outdir out/dist . > /dev/null
	$(BIN)/python tools/check_dist.py out/dist

# Measure which lines of src the tests run. The limit is the last measured value.
coverage: $(READY)
	$(BIN)/python -m pytest -n auto --dist loadfile --cov --cov-report=term-missing:skip-covered --cov-fail-under=$(COVERED)

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Write the generated pages: tables of modules, command line and HTTP from the code, results from stored files.
docs: $(READY)
	$(BIN)/python docs/write_architecture.py
	$(BIN)/python docs/write_cli.py
	$(BIN)/python docs/write_http.py
	$(BIN)/python docs/write_results.py
	$(BIN)/python docs/write_paper.py

# Run the examples of README and tutorials, and write their output into the pages.
outputs: $(READY)
	$(BIN)/python docs/write_outputs.py

# The soundness suite with 200,000 examples, and 20,000 statements to applicants: six minutes on 16 cores, about an
# hour on two.
long: $(READY)
	$(BIN)/python -m pytest -n auto tests/soundness/test_soundness.py tests/soundness/test_statements.py $(LONG)
	$(BIN)/python -m pytest -n auto --dist loadfile -m long $(LONG)

# Test that results do not depend on the machine, under settings that change its matrix kernels and threads.
KERNELS := tests/soundness/test_kernels.py tests/ledger/test_audit.py tests/ledger/test_raw_rows.py tests/ledger/test_claims.py \
	tests/test_certificate.py tests/test_changes.py tests/soundness/test_statements.py tests/bench/test_results.py tests/docs/test_readme.py \
	tests/docs/test_performance_page.py
kernels: $(READY)
	$(BIN)/python -m pytest tests/soundness/test_kernels.py $(LONG)
	ATEN_CPU_CAPABILITY=default $(BIN)/python -m pytest -n auto $(KERNELS)
	MKL_CBWR=COMPATIBLE $(BIN)/python -m pytest -n auto $(KERNELS)
	ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE OPENBLAS_CORETYPE=Nehalem OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto $(KERNELS)
	OMP_NUM_THREADS=2 TEST_THREADS=2 $(BIN)/python -m pytest $(KERNELS)

# Kill writers of the ledger at 200 moments, on SQLite and PostgreSQL: minutes.
faults: $(READY)
	$(BIN)/python -m benchmarks.ledger_faults

# Test the service under load, with fuzzing, and with kills while it issues promises: some hours.
serve-bench: $(READY)
	$(BIN)/python -m benchmarks.serve_load
	$(BIN)/python -m benchmarks.serve_fuzz
	$(BIN)/python -m benchmarks.serve_kill

# Test Ray, MLflow and Spark (needs Java), whose packages are too large for every run.
integrations: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,mlflow,mlflow-server,ray,spark]'
	$(BIN)/python -m pytest tests/integration tests/tables/test_partitions.py $(LONG)

# Test with the oldest versions that pyproject.toml allows, in an environment of its own.
OLDEST := .venv-minimum
MINIMUM := tests/contract tests/schema tests/encoding tests/tables tests/ledger tests/app tests/test_imports.py \
	tests/test_certificate.py tests/test_changes.py
minimum:
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints-minimum.txt --editable '.[all]' hypothesis pytest
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest $(MINIMUM)

# Build README, docs and stored results as a site in out/site; a broken link fails.
site: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[site]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python tools/build_site.py

# A hostile review of certificates, answers and ledgers: an hour or two on two cores. It can be interrupted.
adversary: $(READY)
	$(BIN)/python -m benchmarks.adversary

bench: $(READY)
	$(BIN)/python -m benchmarks.certify
	$(BIN)/python -m benchmarks.tightness
	$(BIN)/python -m benchmarks.training
	$(BIN)/python -m benchmarks.quality
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.streaming
	$(BIN)/python -m benchmarks.scale --full
	$(BIN)/python -m benchmarks.explain
	$(BIN)/python -m benchmarks.ledger
	$(BIN)/python -m benchmarks.audit
	$(BIN)/python -m benchmarks.promises
	$(BIN)/python -m benchmarks.gaming
	$(BIN)/python -m benchmarks.truth
	$(BIN)/python -m benchmarks.small_tables
	$(BIN)/python -m benchmarks.bundled_tables
	$(BIN)/python -m benchmarks.panel
	$(BIN)/python -m benchmarks.panel_attack
	$(BIN)/python -m benchmarks.kappa
	$(BIN)/python -m benchmarks.milp
	$(BIN)/python -m benchmarks.performative

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "expected Python 3.11 or newer, got %d.%d — run make PYTHON=/path/to/python3.11" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) $(OLDEST) out .pytest_cache .mypy_cache .ruff_cache .hypothesis
