# The commands people type. Everything is idempotent; the second time is quick.
#   make demo    installs, builds, trains a small model on real text on 2 ranks, and lets it write
#   make test    builds what is missing and runs the tests that every change runs
#   make check   and the rest: sanitizers, the largest matrices of layouts, long fuzzing; holds the README's table of what works
#                against the results. What CI runs
#   make build   leaves the program at build/release/lockstep, its libraries and plugins beside it
#   make asan    tests of the rooms without LibTorch, comm and checkpoint with AddressSanitizer and UBSan
#   make tsan    tests of comm and of saving beside training with ThreadSanitizer
#   make bench   speed beside PyTorch, as ratios of the same run; BENCH="--quick" or other flags of bench/bench.py
#   make bench-page   the figures of docs/benchmarks.md, from one run of this commit: 90 minutes on 2 idle cores
BUILD := build/release
export CCACHE_NOHASHDIR ?= 1

.PHONY: demo test check build all setup bench bench-page asan tsan clean

demo: build
	@bash scripts/demo.sh $(BUILD)/lockstep

test: all
	@python3 scripts/run_tests.py $(BUILD)

check: all
	@python3 scripts/run_tests.py $(BUILD) --check
	@python3 scripts/support_table.py $(BUILD)/tests.xml --check

asan tsan: setup
	@.venv/bin/python tests/sanitizers/run.py $@

bench bench-page: build
	@bash scripts/build.sh bench_adamw bench_collectives bench_imbalance bench_replicas bench_tokenize
	@.venv/bin/python bench/bench.py $(BUILD) $(if $(filter bench-page,$@),--page docs/benchmarks.md) $(BENCH)

build: setup
	@bash scripts/build.sh lockstep runtime

all: setup
	@bash scripts/build.sh

setup:
	@bash scripts/setup.sh

clean:
	rm -rf build
