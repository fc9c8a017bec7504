# The commands of the project. `make test` is the one to run before a change is proposed; .ci/run runs them all.

GO       ?= go
# How long each fuzz target runs, or for how many inputs, such as 5000x.
FUZZTIME ?= 10s
# The packages whose every bit is part of the contract (docs/numerics.md), tested again as other processors would run them.
NUMERIC  := ./core/kernel ./backends/... ./core/graph ./core/sample ./core ./conformance
# What `make mutate` makes mistakes in, how many, and which.
PACKAGES ?= ./core/... ./policies ./presets/...
N        ?= 30
SEED     ?= 1
# A module of its own: the programs that write the assembly.
GENERATORS := backends/_gen
# The emulator of `make arm64` and, where this processor has no AVX2, of `make v3`.
ARM64    ?= qemu-aarch64-static
V3       ?= $(shell grep -qw avx2 /proc/cpuinfo 2>/dev/null || echo -exec '"qemu-x86_64-static -cpu Haswell"')

.PHONY: build test race lint fused generate-check v1 v3 arm64 cross fuzz mutate bench promise clean

build: ## the k3 program, into bin/
	$(GO) build -trimpath -o bin/ ./cmd/k3

test: ## vet and every test, the second time with the race detector where there is a C compiler for it
	$(GO) vet ./...
	$(GO) test ./...
	$(GO) test -C $(GENERATORS) ./...
	@if command -v $$($(GO) env CC) >/dev/null 2>&1; then $(MAKE) --no-print-directory race; else echo "no C compiler: race detector left out"; fi

race:
	CGO_ENABLED=1 $(GO) test -race -short ./...

lint: ## formatting, vet for every system, staticcheck
	@unformatted=$$(gofmt -l cmd core backends policies presets conformance); if [ -n "$$unformatted" ]; then echo "not formatted with gofmt:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) vet -tags noasm ./backends/...
	GOARCH=arm64 $(GO) vet ./...
	GOOS=darwin GOARCH=arm64 $(GO) vet ./...
	GOOS=windows GOARCH=amd64 $(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) mod verify
	cd $(GENERATORS) && $(GO) vet ./... && $$(cd $(CURDIR) && $(GO) tool -n staticcheck) ./...

fused: ## proof in machine code that the compiler fuses no multiply and add
	$(GO) test -count=1 -v -run '^TestCompilerFusesNothing$$' ./conformance/lint

generate-check: ## generated assembly is what its generator writes
	@for arch in amd64 arm64; do \
		dir=backends/$$arch; tmp=$$(mktemp -d); \
		$(GO) run -C $(GENERATORS) ./$$arch $$tmp || exit 1; \
		[ -n "$$(ls $$tmp)" ] || { echo "the generator of $$dir wrote nothing"; exit 1; }; \
		for f in $$tmp/*; do cmp $$f $$dir/$${f##*/} || { echo "run: go generate ./$$dir"; exit 1; }; done; \
		echo "$$dir: $$(ls $$tmp | wc -l) generated files are up to date"; rm -r $$tmp; \
	done

v1: ## numeric tests for the oldest amd64
	GOAMD64=v1 $(GO) test $(NUMERIC)

v3: ## numeric tests for amd64 with AVX2, where the compiler may fuse
	GOAMD64=v3 $(GO) test $(V3) $(NUMERIC)

arm64: ## numeric tests for arm64, under qemu
	GOARCH=arm64 CGO_ENABLED=0 $(GO) test -short -exec $(ARM64) $(NUMERIC)

cross: ## the program for every system it supports
	@for os in linux darwin windows; do for arch in amd64 arm64; do \
		echo "build $$os/$$arch"; CGO_ENABLED=0 GOOS=$$os GOARCH=$$arch $(GO) build -o /dev/null ./cmd/k3 || exit 1; \
	done; done

fuzz: ## every fuzz target for FUZZTIME
	@for file in $$(grep -rl --include='*_test.go' '^func Fuzz' core backends policies presets conformance cmd); do \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' $$file); do \
			echo "$$target in $$(dirname $$file):"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 100x ./$$(dirname $$file) || exit 1; \
		done; \
	done

mutate: ## whether the tests of PACKAGES notice N random mistakes
	$(GO) run ./conformance/mutate -n $(N) -seed $(SEED) $(PACKAGES)

bench: ## every benchmark, once
	$(GO) test -run '^$$' -bench . -benchmem ./...

promise: ## peak memory at released size below every budget this machine has free; PROMISE_MODEL is a checkpoint if there is one
	PROMISE_MODEL=$${PROMISE_MODEL:-fabricate} $(GO) test -count=1 -v -timeout 3h -run '^TestMemoryIsAPromise' ./cmd/k3

clean:
	rm -rf bin
