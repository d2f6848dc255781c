# Set-up is part of every target: on a fresh machine `make demo` or `make test` is the only command to type.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PY := .venv/bin/python
BIN := .venv/bin

.PHONY: help demo vm test check bench fuzz lock setup apt clean

help:            ## what there is
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

demo: .venv/ready ## start an agent and get a shell in it; without a terminal on stdin, a scripted proof
	@$(PY) -m tests.demo

vm: .venv/ready apt ## boot a virtual machine with the agent in it and get a shell; without a terminal on stdin, figures
	@$(PY) -m tests.vm

test: .venv/ready apt xterm ## everything that CI runs
	$(MAKE) lint
	$(PY) -m pytest -q

check: .venv/ready lint ## lint, types and unit tests: for every edit
	$(PY) -m pytest -q -x -m "not slow" tests/guestagent tests/ptymux tests/vm/unit

.PHONY: lint
lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/mypy
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

bench: .venv/ready build/bench/relay build/bench/client ## ratios to a C relay, measured in one run
	$(PY) -m bench

fuzz: .venv/ready ## ten minutes of streams that nobody has fed to the terminal model before; a fault names its seed
	$(PY) -m tests.terminal.fuzz --minutes 10 --seed $$(date +%s)

build/bench/%: bench/%.c bench/wire.h bench/link.h
	@mkdir -p build/bench
	cc -O2 -Wall -Wextra -o $@ $< -lutil

setup: .venv/ready ## the virtual environment with the pinned dependencies

.venv/ready: requirements.lock pyproject.toml
	@command -v python3 >/dev/null || { echo "python3 (3.11 or newer) is needed" >&2; exit 1; }
	python3 -m venv .venv || { $(MAKE) apt-venv && python3 -m venv --clear .venv; }
	$(BIN)/pip install -q --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(PY) -m compileall -q .venv/lib guestagent protocol || true
	@touch $@

.PHONY: apt-venv
apt-venv:
	apt-get update -q && apt-get install -y -q --no-install-recommends python3-venv

# Real programs for the tests: full-screen ones, the tmux that types into them, and a compiler for the bench; what builds images
# (mmdebstrap, e2fsprogs, kmod, lz4 ...) and boots them (QEMU); and what checks them (cpio, systemd-analyze).
# No test is skipped for want of one: it fails.
APT_COMMANDS := tmux vim less htop top fish gcc mmdebstrap mke2fs depmod lz4 xz zstd cpio systemd-analyze qemu-system-x86_64 qemu-img
APT_PACKAGES := tmux vim less htop procps fish gcc libc6-dev mmdebstrap e2fsprogs kmod lz4 xz-utils zstd cpio systemd qemu-system-x86 qemu-utils
# The kernel for the VMs comes by apt too, and its version is asked for: the lists must be there although nothing is missing.
apt:
	@for c in $(APT_COMMANDS); do command -v $$c >/dev/null || missing=1; done; \
	if [ -n "$$missing" ]; then apt-get update -q && apt-get install -y -q --no-install-recommends $(APT_PACKAGES); \
	elif ! compgen -G "/var/lib/apt/lists/*Packages*" >/dev/null; then apt-get update -q; fi

# xterm.js, the terminal that ours is compared with.
XTERM := tests/terminal/xterm
.PHONY: xterm
xterm: $(XTERM)/node_modules/ready
$(XTERM)/node_modules/ready: $(XTERM)/package.json $(XTERM)/package-lock.json
	@command -v npm >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends nodejs npm; }
	cd $(XTERM) && npm ci --no-audit --no-fund --loglevel=error
	@touch $@

lock: ## pin everything anew
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
		--group dev --output-file requirements.lock pyproject.toml

clean: ## remove everything that was built
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache $(XTERM)/node_modules
