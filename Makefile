PYTHON ?= python3
ARGS ?=
PROCESSES ?= 2
VENV := .venv
VLLM_VENV ?= .venv-vllm
BIN := $(VENV)/bin
PYTEST := $(BIN)/pytest -n $(PROCESSES) --dist worksteal

SOURCE := $(shell find src -name '*.py') pyproject.toml hatch_build.py scripts/product.sh

.PHONY: serve test test-compiled test-vllm check format docs bench ablation vllm-compare vllm-order lock clean

serve: $(VENV)/.product  ## run the gateway on the embedded model
	$(BIN)/fairlane serve $(ARGS)

test: $(VENV)/.dev  ## all tests, on the source
	$(PYTEST) $(ARGS)

test-compiled: $(VENV)/.dev $(VENV)/.product  ## all tests again, on the product as it is installed
	FAIRLANE_INSTALLED=1 $(PYTEST) -m 'not source' $(ARGS)

test-vllm:  ## the tests of the vLLM plugin; installs vLLM into a folder of its own
	VLLM_VENV=$(VLLM_VENV) PYTHON=$(PYTHON) sh scripts/test_vllm.sh $(ARGS)

check: $(VENV)/.dev  ## format, lint, strict types, import layers
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy && PYTHONPATH=src $(BIN)/lint-imports --no-logo

format: $(VENV)/.dev
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

docs: $(VENV)/.dev  ## write the generated pages anew
	sh scripts/docs.sh $(BIN)

bench: $(VENV)/.dev $(VENV)/.product  ## cost of a request and of a chunk, beside nginx
	$(BIN)/python -m bench.run $(ARGS)

ablation: $(VENV)/.dev $(VENV)/.product  ## what each part of the scheduler is worth, into docs/ablation.md
	$(BIN)/python -m bench.ablation $(ARGS) >docs/ablation.md.new && mv docs/ablation.md.new docs/ablation.md

vllm-compare:  ## the simulator's engine beside vLLM's scheduler; installs vLLM into a folder of its own
	VLLM_VENV=$(VLLM_VENV) PYTHON=$(PYTHON) sh bench/vllm_scheduler/run.sh $(ARGS)

vllm-order: $(VENV)/.dev $(VENV)/.product  ## what the gateway does in front of a real vLLM; an hour and a quarter
	PYTHON=$(PYTHON) sh scripts/vllm.sh $(VLLM_VENV)
	$(BIN)/python -m bench.vllm_order --vllm $(VLLM_VENV)/bin/python $(ARGS)

lock:  ## renew requirements/*.txt from pyproject.toml
	sh scripts/lock.sh $(BIN)

$(VENV)/.serve: requirements/serve.txt scripts/venv.sh
	PYTHON=$(PYTHON) sh scripts/venv.sh $(VENV) requirements/serve.txt && touch $@

$(VENV)/.dev: requirements/dev.txt scripts/venv.sh
	PYTHON=$(PYTHON) sh scripts/venv.sh $(VENV) requirements/dev.txt && touch $(VENV)/.serve
	test -e $(VENV)/.product || $(MAKE) $(VENV)/.product  # once: tests need its program, and run it on the source
	touch $@

$(VENV)/.product: $(VENV)/.serve $(SOURCE)
	sh scripts/product.sh $(VENV) && touch $@

clean:
	rm -rf $(VENV) $(VLLM_VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
