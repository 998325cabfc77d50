# `make demo` and `make test` do all set-up by themselves, on a machine with Python 3.11 or newer, git and make.

PYTHON ?= python3
BIN = .venv/bin
# What is compiled is kept, whatever the shell says: many processes start.
PYTEST = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile
EXTRAS = engine,dev,sb3,rsl-rl,llm,onnx,hub

.PHONY: demo test optima wheel lint bench mutate fuzz paper stale site clean

demo: .venv/base  ## customize a shipped HalfCheetah: prior and result in a table, and in a report with films
	$(BIN)/repolicy customize halfcheetah --addon hind_leg=10 --steps 1e5 --out runs/demo --resume

test: .venv/full  ## all tests but those of `make optima`
	$(PYTEST) -m "not long"

optima: .venv/full  ## the tests that train until they are at an optimum that is known
	$(PYTEST) -m long

wheel: .venv/full  ## the package as others get it: installed from a wheel, in another folder, and used
	PYTHON=$(BIN)/python .ci/wheel

lint: .venv/full
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: .venv/full  ## the speed, beside the physics and beside peers
	$(BIN)/python -m benchmarks.speed --out results/speed.jsonl
	$(BIN)/python -m benchmarks.peers --out results/peers.jsonl

mutate: .venv/full  ## break the mathematics and the checks on purpose: each break must be noticed by a test
	$(BIN)/python -m benchmarks.mutate

fuzz: .venv/full  ## damaged files and odd command lines: no traceback, no hang, no silently other policy
	$(BIN)/python -m benchmarks.fuzz

paper: .venv/full  ## the paper's tables, measured again: days; stop it at any time, and go on
	nice -n 19 $(BIN)/python -m experiments.paper --jobs 2
	$(BIN)/python -m experiments.paper --picture docs/images/paper.png
	$(BIN)/python -m experiments.tables

stale: .venv/base  ## which rows of results/ are older than a change that makes runs end elsewhere
	$(BIN)/python -m experiments.stale

site: .venv/docs  ## these pages as a website in site/, which works from a disk, without a network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

.venv/base: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[engine]'
	touch $@

.venv/full: .venv/base
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@

.venv/docs: .venv/base
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

clean:
	rm -rf .venv site dist
