PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin

.PHONY: serve test check format docs bench vllm-compare lock clean

serve: $(VENV)/.serve  ## run the gateway on the embedded model
	$(BIN)/fairlane serve $(ARGS)

test: $(VENV)/.dev  ## all tests but the slow benchmarks
	$(BIN)/pytest $(ARGS)

check: $(VENV)/.dev  ## format, lint, strict types, import layers
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy && $(BIN)/lint-imports --no-logo

format: $(VENV)/.dev
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

docs: $(VENV)/.dev  ## write the generated pages anew
	sh scripts/docs.sh $(BIN)

bench: $(VENV)/.dev  ## cost of a request and of a chunk, beside nginx
	$(BIN)/python -m bench.run $(ARGS)

vllm-compare:  ## the simulator's engine beside vLLM's scheduler; installs vLLM into a folder of its own
	sh bench/vllm_scheduler/run.sh $(ARGS)

lock:  ## renew requirements/*.txt from pyproject.toml
	sh scripts/lock.sh $(BIN)

$(VENV)/.serve: requirements/serve.txt pyproject.toml scripts/venv.sh
	PYTHON=$(PYTHON) sh scripts/venv.sh $(VENV) requirements/serve.txt && touch $@

$(VENV)/.dev: requirements/dev.txt pyproject.toml scripts/venv.sh
	PYTHON=$(PYTHON) sh scripts/venv.sh $(VENV) requirements/dev.txt && touch $@ $(VENV)/.serve

clean:
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
