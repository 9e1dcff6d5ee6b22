# Needs Go and make; everything else is fetched or started on demand.
# Each module is built on its own, as its users do; tests and lint use go.work, to compile what modules share once.

GO       ?= go
ARGS     ?=
TESTARGS ?=

export GOWORK := off

MODULES := . $(patsubst %/go.mod,%,$(sort $(wildcard */go.mod */*/go.mod */*/*/go.mod)))

# The race detector needs a C compiler; without one, CGO_ENABLED is 0.
RACE = $(if $(filter 1,$(shell $(GO) env CGO_ENABLED)),-race)

.DEFAULT_GOAL := help
.PHONY: help build vet demo demo-kafka demo-page chaos soak simulate conformance mutants test test-rest test-all test-ui test-long test-matrix test-upgrade check-format lint fuzz vuln bench bench-quick scoreboard clean
.PHONY: release-check release-tag recording

# These targets generate pages and lists from the code; a test compares their output.
GENERATORS := api ibx metrics outboxctl promises reference screenshots
.PHONY: generate $(GENERATORS)

help: ## list the targets
	@awk -F ': .*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## go build in all modules
	@$(call each,$(GO) build -o /dev/null ./...)

vet: ## go vet in all modules
	@$(call each,$(GO) vet ./...)

generate: $(filter-out screenshots,$(GENERATORS)) ## write all pages and lists that are generated from the code

api: ## write the exported names to api.txt, after an intended change
	@OUTBOX_WRITE_API=1 $(GO) test -count=1 -run 'TestAPI$$' ./internal/testing/docs

ibx: ## write integration_test/ibx.md from the tests of the inbox's requirements
	@cd integration_test && OUTBOX_WRITE_IBX=1 $(GO) test -count=1 -run 'TestIBXDocument$$' .

metrics: ## write docs/reference/metrics.md from what observe/prom shows
	@cd observe/prom && OUTBOX_WRITE_METRICS=1 $(GO) test -count=1 -run 'TestMetricsDocument$$' .

promises: ## write integration_test/promises.md: which test of make test covers which promise
	@cd integration_test && OUTBOX_WRITE_PROMISES=1 $(GO) test -count=1 -run 'TestPromises$$' .

reference: ## write docs/reference/configuration.md and errors.md from the code
	@OUTBOX_WRITE_REFERENCE=1 $(GO) test -count=1 -run 'TestReference$$' ./internal/testing/docs

outboxctl: ## write docs/reference/outboxctl.md from the help of the commands
	@cd cmd/outboxctl && OUTBOX_WRITE_DOCUMENT=1 $(GO) test -count=1 -run 'TestDocument$$' ./cli

demo: ## send orders through NATS JetStream on a bad day, then count the results
	@$(call demo,nats)

demo-kafka: ## the same with Kafka
	@$(call demo,kafka)

demo-page: ## the page of package admin on a bad day, at http://127.0.0.1:8080/outbox/
	@$(call demo,page)

# Chaos is part of the tests with three of its faults; all of them take longer than a run of CI may. An hour, unless told otherwise.
chaos: ## everything fails, for an hour, while a ledger counts (ARGS='10m 17': duration, and seed of the faults)
	@$(call chaos,$(or $(ARGS),1h))

soak: ## an hour at a steady rate, stopped now and then: memory, connections and sizes as a chart (ARGS='20m')
	@$(call chaos,$(or $(ARGS),1h) $(shell date +%s) soak)

simulate: ## many random schedules of the forwarder's state, as a table (ARGS='10m 4711': duration, and first seed)
	@OUTBOX_SIMULATE="$(or $(ARGS),10m)" $(GO) test -count=1 -v -timeout 0 -run 'TestSimulate$$' ./forwarder/internal/dispatch | grep -v '^ *\(---\|===\) '

conformance: ## kill and freeze brokers under each publisher, as a table (ARGS='-kills 100 -only ^amqp -write')
	@cd integration_test && OUTBOX_CONFORMANCE="$(ARGS)" $(GO) test -count=1 -v -timeout 0 -run 'TestPublishersConform$$' .

mutants: ## break one rule after another, and print which test or seed of the model finds it (ARGS="IN QU": names with these prefixes)
	@OUTBOX_MUTANTS="$(or $(ARGS),all)" $(GO) test -count=1 -v -timeout 0 -run 'TestMutants$$' ./internal/testing/mutants | grep -v '^ *\(---\|===\) '

test: check-format ## test each promise once, in minutes; lists what it left out (TESTARGS='-run Name')
	@.ci/tests first $(TESTARGS)

test-rest: ## run what the last make test left out, and build each module on its own, as its users do
	@.ci/tests make vet
	@.ci/tests rest

test-all: ## all tests: make test, then test-rest (TESTARGS='-run Name')
ifeq ($(TESTARGS),)
	@code=0; $(MAKE) --no-print-directory test || code=1; $(MAKE) --no-print-directory test-rest || code=1; exit $$code
else
	@.ci/tests all $(TESTARGS)
endif

test-long: check-format ## the same with the long variants; takes hours
	@OUTBOX_LONG=1 .ci/tests all $(TESTARGS)

test-ui: ## test the page in Chromium, with axe-core; leaves screenshots in .cache/ui; needs the network once
	@$(chromium)
	@cd internal/testing/uitest && $(GO) test -count=1 -timeout 10m $(TESTARGS) ./...

screenshots: ## make the pictures of the page in docs, in Chromium
	@$(chromium)
	@cd internal/testing/uitest && OUTBOX_SCREENSHOTS=$(CURDIR)/docs $(GO) test -count=1 -timeout 10m -run 'TestScreenshots$$' .
	@OUTBOX_WRITE_SUM=1 $(GO) test -count=1 -run 'TestScreenshotsAreOfThisPage$$' ./admin/ui

test-matrix: ## all tests with each PostgreSQL, both releases of Go, the newest requirements; takes hours (ARGS=postgres-13)
	@.ci/matrix $(ARGS)

test-upgrade: ## processes of an older version and of this one work together (ARGS=commit)
	@.ci/rehearse $(ARGS)

check-format:
	@bad=$$("$$($(GO) env GOROOT)/bin/gofmt" -l .) && \
	if [ -n "$$bad" ]; then echo "gofmt these files:"; echo "$$bad"; exit 1; fi

# In the workspace, like the tests, to reuse what they compiled.
lint: ## staticcheck in all modules
	@GOBIN=$(CURDIR)/.cache/bin $(GO) install honnef.co/go/tools/cmd/staticcheck@v0.8.2
	@code=0; GOWORK= .cache/bin/staticcheck $(addsuffix /...,$(addprefix ./,$(filter-out internal/testing/uitest,$(MODULES)))) || code=1; \
	(cd internal/testing/uitest && $(CURDIR)/.cache/bin/staticcheck ./...) || code=1; exit $$code

fuzz: ## each fuzz target for a minute (ARGS=10m, ARGS='10m ./admin'); commit its findings with the fix
	@.ci/fuzz $(ARGS)

vuln: ## govulncheck in all modules; uses vuln.go.dev
	@$(call each,$(GO) run golang.org/x/vuln/cmd/govulncheck@latest ./...)

bench: ## compare with others and with the floors, in 20 minutes (ARGS='-only name')
	@cd bench && $(GO) run . $(ARGS)

bench-quick: ## the rows that a change to the engine is likely to slow down
	@cd bench && $(GO) run . -quick $(ARGS)

scoreboard: ## scenarios of published comparisons, for the outbox, the queue and River, in half an hour (ARGS='-only crash')
	@cd bench && $(GO) run ./scoreboard $(ARGS)

release-check: ## tag a clone, and install from it what users install (make release-check VERSION=v0.1.0)
	@cd tools/release && $(GO) run . check $(VERSION)

release-tag: ## commit the changelog and make the tags here; pushes nothing (make release-tag VERSION=v0.1.0)
	@cd tools/release && $(GO) run . tag $(VERSION)

recording: ## record make demo as docs/demo.svg; needs asciinema and npx
	@$(GO) -C examples build -o ../.cache/demo-nats ./demo/nats
	@asciinema rec -q --overwrite --cols 100 --rows 32 -c '.cache/demo-nats -orders 2000 -for 8s -outage 2s' .cache/demo.cast
	@npx --yes svg-term-cli@2.1.1 --in .cache/demo.cast --out docs/demo.svg --window --no-cursor --width 100 --height 32

clean: ## remove what the targets above built
	rm -rf .cache

chromium = command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing chromium"; apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends chromium >/dev/null; \
	else echo "this needs Chromium: apt-get install chromium, or the like"; exit 1; fi

# each runs a command in one module after another, the root first, continues after a failure, and prints the times at the end. A long
# command prints a line now and then, to show that it is alive. The output of sleep is closed: it would keep a pipe open after the end.
each = began=$$(date +%s); \
	( while sleep 25 >/dev/null 2>&1; do echo "-- $$(( $$(date +%s) - began )) s"; done ) & clock=$$!; \
	trap 'kill $$clock' EXIT; trap 'exit 130' INT TERM; \
	code=0; took=; \
	for module in $(MODULES); do \
		echo "== $$module: $(1)"; start=$$(date +%s); (cd $$module && $(1)) || code=1; \
		took="$$took$$(printf '%6d s' $$(( $$(date +%s) - start )))  $$module\n"; \
	done; \
	printf "$$took"; exit $$code

chaos = cd integration_test && OUTBOX_CHAOS="$(1)" $(GO) test $(RACE) -count=1 -v -timeout 0 -run 'TestChaos$$' .

# Built first and then run, so that signals and the exit code are the demo's own.
demo = echo "building examples/demo/$(1)" && mkdir -p .cache && cd examples && \
	$(GO) build -o ../.cache/demo-$(1) ./demo/$(1) && exec ../.cache/demo-$(1) $(ARGS)
