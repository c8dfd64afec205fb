# weir: see README.md. `make run`, `make test` and `make build` do all set-up themselves.
BUILD ?= build
JOBS ?= $(shell nproc)

.PHONY: setup build
setup:
	@scripts/install-packages.sh
	@scripts/fetch-llama.sh
	@scripts/build-llama.sh

build: setup
	@scripts/configure.sh release $(BUILD)
	@ninja -C $(BUILD)
