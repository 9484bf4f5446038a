# make demo            trains a small network on mps and on the CPU beside it (examples/digits.py)
# make test            builds, and runs the tests; TESTS=tests/ops/conv/test_conv.py chooses
# make lint            checks formats and the shape of the tree, without a build
# make docs            this documentation as a site, in build/docs
# make build           the package in .venv
# make wheel           one wheel for all versions of PyTorch, in dist/
# make bench           speeds of operators beside the CPU or ANYMPS_PEER_PYTHON; chart, zoo and profile: of networks
# make test-full       PyTorch's samples of every operator; test-sweep, soak, test-exit and more: CONTRIBUTING.md
#
# All install what they need first, as root, or say what is missing, and are quick the second time. tools/setup.sh tells
# which PyTorch that is; `TORCH_VERSION=2.15 VENV=.venv-2.15 make test` is another one, in an environment of its own.
VENV ?= .venv
PY = $(VENV)/bin/python
TESTS ?= tests
# A test compiles kernels on one core most of its time, so the cores share the tests; few processes share one GPU well.
# OpenMP's threads must not spin while they wait: they would take the cores from the other processes and the driver.
PYTEST = OMP_WAIT_POLICY=passive $(VENV)/bin/pytest --durations 20 --numprocesses logical --maxprocesses 4 --dist worksteal

# The versions of PyTorch that `make wheel` serves, the oldest first.
VERSIONS ?= 2.13 2.14 2.15

.PHONY: demo test test-nightly test-full test-sweep soak test-exit build wheel wheel-aarch64 sdist release release-check lint bench chart zoo profile test-compilers test-lanes test-cuda-wheel test-ecosystem

.DEFAULT_GOAL = help
.PHONY: help
help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

demo:
	@tools/setup.sh system
	@tools/setup.sh venv demo
	@tools/setup.sh build
	@$(PY) examples/digits.py

test:
	@tools/setup.sh system
	@tools/setup.sh venv test
	@tools/setup.sh build tests
	@$(VENV)/bin/ctest --test-dir build/$(notdir $(VENV)) --output-on-failure
	@$(PYTEST) $(TESTS)

# What takes too long for every change: launchers, machines and ranks that fail. As root also what needs network namespaces.
test-nightly:
	@tools/setup.sh system
	@tools/setup.sh venv test
	@tools/setup.sh build
	@$(PYTEST) -m nightly $(TESTS)

# Every sample of PyTorch's op_db in every dtype; the counts go into docs/supported_ops.md. And the longest dispatches
# of all its operators on 2^28 elements.
test-full:
	@tools/setup.sh system
	@tools/setup.sh venv test
	@tools/setup.sh build tests
	@$(PY) -P -m pytest -q tests/op_db/test_op_db.py --op-db-full --op-db-results build/op_db.json
	@$(PY) -P -m pytest -q tests/runtime/test_longest_dispatch.py --op-db-full
	@$(PY) -P tools/op_db_counts.py docs/op_db/lavapipe.json build/op_db.json
	@$(PY) -P tools/supported_ops.py

# Every operator of op_db under every check of tests/support/sweep_case.py; the counts go into docs/supported_ops.md. Cases
# that build/sweep.jsonl holds already are not run again.
test-sweep:
	@tools/setup.sh system
	@tools/setup.sh venv test
	@tools/setup.sh build
	@$(PY) -P -m pytest -q tests/op_db/test_sweep.py --sweep-full --sweep-results build/sweep.jsonl
	@$(PY) -P tools/op_db_counts.py docs/op_db/sweep/lavapipe.json build/sweep.jsonl
	@$(PY) -P tools/supported_ops.py

# 20,000 random calls beside the CPU, where `make test` makes 500.
soak:
	@tools/setup.sh system
	@tools/setup.sh venv test
	@tools/setup.sh build
	@$(PY) -P -m pytest -q tests/op_db/test_random_calls.py --random-calls 20000
	@$(PY) -P -m pytest -q tests/runtime/test_memory.py --shapes 5000
	@$(PY) -P -m pytest -q -o timeout=3600 -m nightly tests/distributed/test_soak.py --soak-steps 2000
	@$(PY) -P -m pytest -q tests/inductor/test_compiled_random.py --compiled-graphs 2000

# The long run of tests/runtime/test_exit.py: 200 processes that end right after backward().
test-exit:
	@tools/setup.sh system
	@tools/setup.sh venv test
	@tools/setup.sh build
	@ANYMPS_EXIT_RUNS=200 $(PY) -P -m pytest -o timeout=3600 tests/runtime/test_exit.py

build:
	@tools/setup.sh system
	@tools/setup.sh venv demo
	@tools/setup.sh build

# One wheel for all VERSIONS of PyTorch, in dist/: a library each beside one archive of kernels. Each is built in an
# environment of its own, .venv-2.14 for one; where no CPU build of it is to be had, that takes 6 GB. For aarch64 it is
# cross-built, after this machine's: Debian's and Ubuntu's package g++-aarch64-linux-gnu.
wheel:
	@tools/setup.sh system
	@set -e; for version in $(VERSIONS); do \
	    VENV=.venv-$$version TORCH_VERSION=$$version tools/setup.sh venv build; \
	    VENV=.venv-$$version KERNELS_OF=$$kernels tools/setup.sh wheel; \
	    kernels=$${kernels:-$(CURDIR)/build/.venv-$$version}; \
	done
	@.venv-$(firstword $(VERSIONS))/bin/python tools/merge_wheels.py $(VERSIONS:%=build/wheels/.venv-%/*.whl) --out dist

wheel-aarch64:
	@set -e; for version in $(VERSIONS); do \
	    VENV=.venv-$$version KERNELS_OF=$(CURDIR)/build/.venv-$(firstword $(VERSIONS)) tools/aarch64.sh wheel; \
	done
	@.venv-$(firstword $(VERSIONS))/bin/python tools/merge_wheels.py \
	    $(VERSIONS:%=build/aarch64/wheels/.venv-%/*.whl) --out dist

sdist:
	@tools/release.sh sdist

# All that a release consists of, in dist/, checked: the workflow of releases runs this.
release: wheel wheel-aarch64 sdist release-check

# The wheel is installed into new environments with each version of PyTorch and nothing else; the source
# archive is built once more from its own files, without a network.
release-check:
	@VERSIONS="$(VERSIONS)" tools/release.sh files
	@set -e; for version in $(VERSIONS); do TORCH_VERSION=$$version tools/release.sh install; done
	@VENV=.venv-$(firstword $(VERSIONS)) tools/release.sh offline

lint:
	@tools/setup.sh system
	@tools/setup.sh venv dev
	@tools/lint.sh

# SAVE=--save writes the figures into benchmarks/results, from which tools/render_performance.py makes the documents.
bench:
	@tools/setup.sh system
	@tools/setup.sh venv test
	@tools/setup.sh build
	@set -e; for script in benchmarks/runtime/*.py benchmarks/ops/*.py; do echo "==> $$script"; $(PY) $$script $(SAVE); done

# Whole networks, trained and evaluated, beside the CPU and the peer of ANYMPS_PEER_PYTHON; writes docs/chart.png.
chart:
	@tools/setup.sh system
	@tools/setup.sh venv test
	@tools/setup.sh build
	@$(PY) benchmarks/models/chart.py $(SAVE)

# 35 networks of many trades on mps and the peer of ANYMPS_PEER_PYTHON; tiny ones beside the CPU on software drivers.
zoo:
	@tools/setup.sh system
	@tools/setup.sh venv test
	@tools/setup.sh build
	@$(PY) benchmarks/models/zoo.py

# The most expensive kernels of the chart's networks, with their fraction of the bound that applies.
profile:
	@tools/setup.sh system
	@tools/setup.sh venv test
	@tools/setup.sh build
	@$(PY) benchmarks/models/kernel_profile.py $(SAVE)

# The documents and the docstrings as a site in build/docs; warnings are errors. It needs neither PyTorch nor a build.
.PHONY: docs
DOCS = build/docs-venv
docs:
	@[ -x $(DOCS)/bin/mkdocs ] || { $${PYTHON:-python3} -m venv $(DOCS) && $(DOCS)/bin/pip install -q \
	    $$(sed -n 's/^docs = \[\(.*\)\]$$/\1/p' pyproject.toml | tr -d '",'); }
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet
	@echo "build/docs/index.html"

# Every kernel through Mesa's compilers for AMD's GPUs (and others', see the test), without one: prints spilled registers.
test-compilers:
	@tools/setup.sh system
	@tools/setup.sh venv test
	@tools/setup.sh build
	@$(VENV)/bin/pytest -m compilers tests/kernels/test_compilers.py

# The kernels of GPUs with subgroups of 16, 32 and 64 lanes, on a lavapipe that is built for it: hours.
test-lanes:
	@tools/setup.sh system
	@tools/setup.sh venv test
	@tools/setup.sh build
	@tools/wide_lavapipe.sh build/wide_lavapipe
	@ANYMPS_WIDE_LAVAPIPE=$(CURDIR)/build/wide_lavapipe/wide.json $(VENV)/bin/pytest -m lanes tests/kernels/test_lanes.py

# The same tests beside the default CUDA build of PyTorch, in an environment of its own (about 5 GB).
test-cuda-wheel:
	@tools/setup.sh system
	@VENV=.venv-cuda TORCH_INDEX=default tools/setup.sh venv test
	@VENV=.venv-cuda tools/setup.sh build
	@.venv-cuda/bin/python -c "import torch; assert torch.version.cuda, 'the default index gave a build without CUDA'"
	@.venv-cuda/bin/pytest -m cuda_wheel

# Twenty libraries that stand on PyTorch, each trained or run beside the CPU, in an environment of its own.
test-ecosystem:
	@tools/setup.sh system
	@VENV=.venv-ecosystem tools/setup.sh venv ecosystem
	@VENV=.venv-ecosystem tools/setup.sh build
	@ANYMPS_ECOSYSTEM=1 OMP_WAIT_POLICY=passive .venv-ecosystem/bin/pytest --durations 20 tests/ecosystem
