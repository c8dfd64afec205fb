# weir: see README.md. Every target does the set-up it needs; a second run is quick.
#   make run      build, then a conversation with the embedded model
#   make test     build everything, run all tests (also under the sanitizers, and the fuzz targets)
#   make build    the program, at build/weir
#   make bench    the attention kernels, and weir beside llama.cpp on a synthetic Gemma 3 1B
BUILD ?= build
SOURCES = $(foreach d,src include bench fuzz tests,'$(d)/*.h' '$(d)/*.cpp')

.PHONY: run test build setup format format-check tidy bench clean distclean
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
	@scripts/install-packages.sh clang-format-16
	@git ls-files $(SOURCES) | xargs clang-format-16 -i

format-check:
	@scripts/install-packages.sh clang-format-16
	@git ls-files $(SOURCES) | xargs clang-format-16 --dry-run --Werror

tidy: build
	@scripts/install-packages.sh clang-tidy-16
	@git ls-files 'src/*.cpp' | grep -v _test.cpp | xargs -P $$(nproc) -n 1 clang-tidy-16 -p $(BUILD) --quiet

bench: setup
	@scripts/configure.sh release $(BUILD) -DWEIR_BENCH=ON
	@scripts/compile.sh $(BUILD)
	@scripts/bench.sh $(BUILD)

clean:
	rm -rf build build-*

# Also the downloaded source and the built libraries.
distclean: clean
	rm -rf .deps
