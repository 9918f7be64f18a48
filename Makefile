# SPDX-License-Identifier: Apache-2.0
#
# Shortcuts for CMake and CTest: each target is one or two commands.

MAKEFLAGS += --no-print-directory
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
PREFIX ?= /usr/local
CLANG_FORMAT ?= clang-format
FUZZ_SECONDS ?= 60

sources = $(shell git ls-files 'include/*.h' 'src/*.[ch]' 'src/*.cu' 'tool/*.[ch]' 'vgpu/*.[ch]' 'examples/*.c' 'include/*.hpp' 'examples/*.cpp' \
    'tests/*.[ch]' 'tests/faults/*.cu' | grep -Ev '^tests/(abi/0|data|golden|faults/check)')

# $(call build,preset): configure (quietly) and build.
build = cmake --preset $(1) >/dev/null && cmake --build --preset $(1) --parallel $(JOBS)

# $(call test,mode,folder): CTest, the list of skips, the closing line. WITHOUT='slow|cli' leaves out
# labels.
test = JOBS=$(JOBS) sh tests/run.sh $(1) $(2) $(if $(WITHOUT),--label-exclude '$(WITHOUT)')

.PHONY: all debug gpu deps nvcc test-all deps-to-test run test bench bench-vgpu install uninstall asan tsan bare x86 fuzz format clean help
.PHONY: wheel deb docs release lint lint-includes lint-style lint-docs lint-format lint-tidy tables

all:
	@$(call build,dev)

debug:
	@$(call build,debug)

help:
	@echo "make          build/attest and build/libattn.so"
	@echo "make debug    the same in build-debug/, with device asserts in the GPU kernels"
	@echo "make run      attest run --quick: what this machine can prove, and a page about it (8 minutes on two cores)"
	@echo "make test     all tests (6 to 9 minutes)"
	@echo "make test-all everything, in every build mode (some hours on two cores); .ci/run is the short form"
	@echo "make bench    the CPU backend beside PyTorch's (makes a virtual environment)"
	@echo "make bench-vgpu  thread-instructions a second of the virtual GPU, under each set of checks"
	@echo "make gpu      all checks of the GPU kernels on this machine's GPU (some minutes)"
	@echo "make install  into PREFIX ($(PREFIX)), below DESTDIR"
	@echo "make uninstall  remove what the last make install wrote"
	@echo "make wheel    dist/*.whl for x86_64 and aarch64, and the sdist (some minutes; PyPI's ziglang is the compiler)"
	@echo "make deb      dist/*.deb for this machine's architecture"
	@echo "make docs     the documentation as a site, build-docs/site/index.html (PyPI's mkdocs-material)"
	@echo "make release  wheels, packages, site and pack in dist/release, with checksums, signed by RELEASE_KEY; and the tag"
	@echo "make deps     install missing packages with apt, for every target (run and test install their own)"
	@echo "make nvcc     install NVIDIA's compiler into build-nvcc/ (from the Python package index; NVIDIA's licence)"
	@echo "make asan     the tests under AddressSanitizer and UndefinedBehaviorSanitizer (clang)"
	@echo "make tsan     the tests under ThreadSanitizer"
	@echo "make bare     the tests with portable C kernels only, and none for GPUs"
	@echo "make x86      the tests for x86_64 under qemu-user"
	@echo "make fuzz     each fuzz target for FUZZ_SECONDS ($(FUZZ_SECONDS)) with libFuzzer"
	@echo "make tables   rewrite the figures of the docs from results/, and api.md from the headers"
	@echo "make lint     include rules, limits, docs, clang-format, clang-tidy"
	@echo "make format   apply clang-format"
	@echo "make clean    remove every build folder"
	@echo "With WITHOUT='slow|cli' the test targets leave out tests by label."

deps:
	@sh cmake/deps.sh all

nvcc: deps
	@sh cmake/nvcc.sh build-nvcc

deps-to-test:
	@sh cmake/deps.sh test

run: deps-to-test all
	@build/attest devices
	@pack=build/evidence-$$(date +%Y%m%d-%H%M%S) && \
	    build/attest run --quick --out $$pack --commit "$$(git rev-parse HEAD 2>/dev/null || echo unknown)"; \
	    status=$$?; build/attest report $$pack --html build/report.html && \
	    echo "report    build/report.html" && exit $$status

test: deps-to-test all
	@$(call test,dev,build)

bench: all
	PYTHONPATH=python $$(sh python/environment.sh build/python-venv) -m attn.peers --device cpu --lib build/libattn.so

bench-vgpu: all
	@build/tests/test_vgpu_speed --table

gpu: all
	@sh tests/meta/prove_gpu.sh build build/proof-$$(date +%Y%m%d-%H%M%S)

install:
	@cmake --preset dev >/dev/null && cmake --build --preset dev --parallel $(JOBS) --target installed
	cmake --install build --prefix "$(PREFIX)"

# What the last install from build/ wrote; its list has no DESTDIR.
uninstall:
	@[ -f build/install_manifest.txt ] || { echo "uninstall: build/ was not installed" >&2; exit 1; }
	sed 's|^|$(DESTDIR)|' build/install_manifest.txt | xargs -d '\n' rm -f --

wheel:
	@JOBS=$(JOBS) sh python/wheels.sh dist

deb:
	@JOBS=$(JOBS) sh cmake/deb.sh dist

docs:
	@sh docs/site/make.sh build-docs

release:
	@sh cmake/release.sh dist/release

test-all:
	@.ci/run --all

asan tsan bare:
	@$(call build,$@)
	@$(call test,$@,build-$@)

x86:
	@$(call build,cross-x86)
	@$(call test,cross-x86,build-x86)

fuzz:
	@cmake --preset asan >/dev/null && cmake --build --preset fuzz --parallel $(JOBS)
	@JOBS=$(JOBS) sh tests/fuzz/run.sh build-asan $(FUZZ_SECONDS)

tables:
	@python3 docs/tables.py
	@python3 docs/api.py

lint:
	@$(MAKE) --keep-going lint-includes lint-style lint-docs lint-format lint-tidy

lint-includes:
	@sh tests/meta/check_includes.sh .

lint-style:
	@sh tests/meta/check_style.sh .

lint-docs:
	@python3 docs/tables.py --check
	@python3 docs/api.py --check

lint-format:
	@$(CLANG_FORMAT) --dry-run -Werror $(sources)

lint-tidy:
	@cmake --preset dev >/dev/null
	@JOBS=$(JOBS) sh tests/meta/check_tidy.sh . build

format:
	$(CLANG_FORMAT) -i $(sources)

clean:
	rm -rf build build-* dist
