# weir: see README.md. Every target does the set-up it needs; a second run is quick.
#   make run      build, then a conversation with the embedded model
#   make test     build everything, run all tests (also under the sanitizers, and the fuzz targets)
#   make build    the program, at build/weir
#   make bench    the attention kernels, and weir beside llama.cpp on a synthetic Gemma 3 1B
#   make bench-servers   weir serve and llama-server over the same conversations (about an hour)
BUILD ?= build

.PHONY: run test build setup format format-check tidy bench bench-servers clean distclean
.DEFAULT_GOAL := build

setup:
	@scripts/install-packages.sh
	@scripts/fetch-llama.sh
	@scripts/build-llama.sh

build: setup
	@scripts/configure.sh release $(BUILD)
	@scripts/compile.sh $(BUILD)

run: build
	@scripts/demo.sh $(BUILD)/weir

test: setup
	@scripts/test.sh

format:
	@scripts/format.sh -i

format-check:
	@scripts/format.sh --dry-run --Werror

tidy: build
	@scripts/install-packages.sh clang-tidy-16
	@find src -name '*.cpp' ! -name '*_test.cpp' -print0 | \
	  xargs -0 -P $$(nproc) -n 1 clang-tidy-16 -p $(BUILD) --quiet

bench: build
	@scripts/bench.sh $(BUILD)

bench-servers: build
	@scripts/bench-servers.sh $(BUILD)

clean:
	rm -rf build build-*

# Also the downloaded source and the built libraries.
distclean: clean
	rm -rf .deps
