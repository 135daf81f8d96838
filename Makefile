# make serve   install into .venv, bring the default model pair, serve it on 127.0.0.1:8000
# make test    the same set-up and the tools, then every check and every test
# make demo    speculation on and off, side by side, on a real prompt
# make lint    ruff and mypy only
# make clean   remove .venv and all caches in this folder (pulled models stay in PACELINE_HOME)

PYTHON ?= python3
PORT ?= 8000
TARGET ?= smollm2-135m-instruct
DRAFT ?= smollm2-135m-instruct-draft

# Processes that run tests side by side. Each loads torch and, in turn, models of up to 1 GB.
WORKERS ?= 2

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Without an NVIDIA GPU the constraints keep CUDA libraries out.
GPU := $(shell if [ -e /dev/nvidia0 ] || nvidia-smi -L >/dev/null 2>&1; then echo yes; fi)
CONSTRAINTS := $(if $(GPU),,-c constraints-cpu.txt)

.PHONY: serve test demo lint models clean
.DELETE_ON_ERROR:

serve: models
	$(BIN)/paceline serve $(TARGET) --speculative-model $(DRAFT) --port $(PORT)

demo: models
	$(BIN)/python -m paceline.demo

test: lint models
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

lint: .venv/.installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

models: .venv/.installed
	$(BIN)/paceline models pull $(TARGET)
	$(BIN)/paceline models pull $(DRAFT)

clean:
	rm -rf .venv build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.installed: pyproject.toml constraints-cpu.txt | $(BIN)/pip
	$(call install,.)
	@touch $@

.venv/.installed-dev: .venv/.installed
	$(call install,.[dev])
	@touch $@

define install
@echo "Installing Paceline into .venv ($(if $(GPU),with an NVIDIA GPU,no NVIDIA GPU: CPU build of torch))"
@$(PIP) install --quiet $(CONSTRAINTS) -e "$(1)" || { $(if $(GPU),,$(no_cpu_torch);) exit 1; }
endef

no_cpu_torch = echo "If pip found no CPU build of torch 2.13.0: this platform's default index may carry CUDA builds only." \
	"Point pip at PyTorch's CPU wheels (pytorch.org, Get Started, Compute Platform: CPU) with PIP_EXTRA_INDEX_URL" \
	"and run make again." >&2

# Debian splits ensurepip off into python3-venv; pip itself can fill an empty environment just as well.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "Paceline needs Python 3.11 or newer; '$(PYTHON)' is not. Try: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv .venv >/dev/null 2>&1 || \
		{ $(PYTHON) -m venv --clear --without-pip .venv && \
		  $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; } || \
		{ rm -rf .venv; echo "No virtual environment could be made. On Debian: apt install python3-venv" >&2; exit 1; }
