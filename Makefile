# One line a target; `make` lists them. PYTHON picks the interpreter of the environment in .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help setup quickstart test check bench accuracy docs traces clean
help: ; @grep -E '^[a-z]+:.*## [a-z]' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14
setup: .venv/.ready ## create .venv with everything that development needs
quickstart: setup ; @$(BIN)/python -m cli.quickstart ## the main job for real, on what this machine has
test: setup ; @$(BIN)/pytest ## every test
check: setup ; $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports && $(BIN)/pytest ## what CI checks
bench: setup ; @OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks.bench ## speeds that users feel
accuracy: setup ; $(BIN)/python -m calibration.report docs ## rewrite docs/accuracy.md and its plots
docs: setup ; $(BIN)/python -m scripts.docs ## rewrite docs/commands.md and the table of files in README.md
traces: setup ; $(BIN)/python -m calibration.trace ## trace every preset again
clean: ; rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis ## remove what can be made again

.venv/.ready: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
