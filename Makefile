# Using octet needs no make: `go build .` and `go test ./...` suffice. build_tags.md
# describes the tags.

STATICCHECK    = honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOFUMPT        = mvdan.cc/gofumpt@v0.12.0
GOLANGCI       = github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
VALE           = github.com/vale-cli/vale/v3/cmd/vale@v3.22.0

# TAGS are the build tags: make build TAGS=cuda,gaudi
TAGS ?=
# Inputs per fuzz target.
FUZZ ?= 20000x

# The tags of accelerators and MPI need cgo. go-nvml needs lazy binding, because its functions are
# unresolved until NVML is loaded, and its bindings of deprecated functions cause warnings.
, := ,
ifneq (,$(filter cuda gaudi mpi,$(subst $(,), ,$(TAGS))))
export CGO_ENABLED = 1
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations
LDFLAGS = -ldflags '-extldflags=-Wl,-z,lazy'
endif

.PHONY: help doctor build test lint fuzz release bench systems figures gpu-check gpu-tests gaudi-standin
.DEFAULT_GOAL := help

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 16

doctor: ## list what this machine has, what is missing and how to get it
	@bash .ci/doctor
	@echo
	-@go run . doctor

# INTO is the folder of the binary.
INTO = ./
build: ## build ./octet (TAGS=cuda,gaudi adds accelerators)
	go build -tags '$(TAGS)' $(LDFLAGS) -o '$(INTO)' .

test: ## run all tests (TAGS as above; OCTET_LONG=1 adds the exhaustive ones)
	go test -tags '$(TAGS)' $(LDFLAGS) ./...

lint: ## run formatters, vet and linters, in pinned versions
	go vet -tags '$(TAGS)' ./...
	go run $(GOFUMPT) -l -d -modpath octet .
	go run $(STATICCHECK) -tags '$(TAGS)' ./...
	go run $(GOLANGCI) run --build-tags '$(TAGS)' ./...
	git ls-files -z '*.md' '*.go' '*.c' '*.h' '*.cpp' '*.cu' '*.cuh' | xargs -0 env CGO_ENABLED=1 go run $(VALE) --output=line

fuzz: ## fuzz every target (FUZZ=10m for ten minutes each)
	@bash .ci/fuzz $(FUZZ)

release: ## build archives, wheels and images of all platforms: dist/
	go -C tools/release run . -source '$(CURDIR)' -o '$(CURDIR)/dist'

bench: ## run the benchmarks of casts and kernels
	go test -run '^$$' -bench . -benchmem ./fp8 ./backend/emu/...

# It ends with status 1: FP16 overflows at the outlier, and the sweep counts its five runs as failed.
systems: build ## compare the systems of the field: 350 runs, resumable (sweeps/systems)
	go run ./study/aligned -write planted
	./octet sweep study/sweeps/systems.toml -o sweeps/systems --markdown

# A sweep that is done trains nothing, so the same command resumes. The tables go into
# docs/evidence/tables.md, each below the command that prints it; pictures beside them.
TABLES = sweeps/tables.md
figures: build ## repeat docs/evidence.md, its tables and pictures: an hour on two idle cores, resumable
	mkdir -p sweeps
	go run ./study/emerge -texts sweeps/texts
	go run ./study/aligned -write planted
	go run ./study/aligned -write planted-10 -size 10
	go run ./study/tasks -o sweeps/tasks
	for name in emerge long adam sporadic smooth-all paper paper-seeds; do ./octet sweep study/sweeps/$$name.toml -o sweeps/$$name || exit; done
	go run ./study/amplify -models sweeps/emerge -write sweeps/amplified
	for name in size rescue; do ./octet sweep sweeps/amplified/$$name.toml -o sweeps/amplified/$$name || exit; done
	printf '# Tables and predictions of evidence.md\n\nWhat `make figures` printed.\n' >$(TABLES)
	set -e; for command in 'neuron' 'growth' 'emerge -runs sweeps/emerge' 'emerge -long sweeps/long' 'amplify -read sweeps/amplified' \
		'alarm -runs sweeps/sporadic' 'adam -runs sweeps/adam' 'paper' 'paper -runs sweeps/paper -tasks sweeps/tasks' 'paper -pairs sweeps'; do \
		printf '\n## go run ./study/%s\n\n' "$$command" >>$(TABLES); go run ./study/$$command >>$(TABLES); done
	mv $(TABLES) docs/evidence/tables.md

# The corpus is Go's standard library in one file: 26 MB, more than 1,000 steps without
# repetition. A model would memorize Octet's own source, 1 MB.
gpu-check: ## pack checks and benchmarks for a machine with a GPU: dist/gpu-check.tar.gz
	rm -rf dist/gpu-check
	mkdir -p dist/gpu-check
	$(MAKE) build TAGS=cuda INTO=dist/gpu-check/
	CGO_ENABLED=0 go build -ldflags='-s -w' -o dist/gpu-check/ ./tools/gpucheck
	$(MAKE) gpu-tests TAGS=cuda
	bash .ci/gorgonia dist/gpu-check/tests/gorgonia/gorgonia.test || [ $$? = 3 ]
	cp tools/gpucheck/gpu-check.sh dist/gpu-check/
	git describe --always --dirty --abbrev=40 --exclude '*' >dist/gpu-check/commit 2>/dev/null || echo unknown >dist/gpu-check/commit
	(cd "$$(go env GOROOT)/src" && find . -name '*.go' ! -name '*_test.go' ! -path './cmd/*' ! -path '*/vendor/*' ! -path '*/testdata/*' | LC_ALL=C sort | xargs cat) >dist/gpu-check/corpus.txt
	tar czf dist/gpu-check.tar.gz -C dist gpu-check

# Each test binary has its own folder, with its testdata.
gpu-tests:
	for package in csrc/libcuda csrc/libcuda/kernels backend/cuda; do \
		folder=dist/gpu-check/tests/$$(basename $$package) && mkdir -p $$folder && \
		go test -c -tags '$(TAGS)' -ldflags '-s -w -extldflags=-Wl,-z,lazy' -o $$folder/ ./$$package && \
		if [ -d $$package/testdata ]; then cp -r $$package/testdata $$folder/; fi || exit 1; \
	done

gaudi-standin: ## build stand-ins for SynapseAI and HLML: dist/libSynapse.so, dist/libhlml.so
	mkdir -p dist
	$(or $(CC),gcc) -std=gnu11 -O2 -ffp-contract=off -fno-trapping-math -Wall -shared -fPIC -Wl,-rpath,'$$ORIGIN' -o dist/libSynapse.so csrc/standin/libsynapse*.c -lm -ldl -lpthread
	for name in TPCFuser ComplexGuid; do $(or $(CC),gcc) -shared -o dist/lib$$name.so -x c /dev/null || exit; done
	$(or $(CC),gcc) -std=gnu11 -O2 -Wall -shared -fPIC -o dist/libhlml.so csrc/standin/libhlml.c
