# One-line recipes; .ci/run calls the same ones.

.PHONY: run demo test check fmt clippy doc docs reference deny cassandra cassandra-stop load soak storm regions growth topology sim exhaustive \
  shuttle laws kinds kinds-table interchange manifests monitoring containers page page-check picture advisories fuzz-check schemathesis \
  versions upgrade scylla mutants bench bench-quick overload idle damage long deletes

run:            ## serve on the embedded store, http://127.0.0.1:8080
	@tests/prerequisites compile
	cargo run --release --locked

demo:           ## three pods and three replicas in one process, to break them; http://127.0.0.1:8080
	@tests/prerequisites compile
	cargo run --release --locked -- demo

test:           ## every test, on a real three-node Cassandra that is fetched, started and stopped
	tests/run

check: fmt clippy doc deny  ## everything that needs no cluster and changes nothing

fmt:
	cargo fmt --all --check

clippy:
	cargo clippy --workspace --all-targets --locked -- -D warnings

reference:      ## rewrites the generated pages of docs/reference
	REFERENCE=write cargo test --locked --test reference

# Without `reference`: the generated pages are in git, and a test compares them with the code.
docs:           ## the book, in target/book, with every link checked; installs mdBook if it is missing
	docs/build

doc:
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --document-private-items

# A debug build: it runs for a second, and optimizing it takes minutes.
CARGO_DENY = cargo deny --version >/dev/null 2>&1 || cargo install --debug --locked cargo-deny --version 0.20.2

deny:           ## licences, bans, sources; installs cargo-deny if it is missing
	$(CARGO_DENY)
	cargo deny check bans licenses sources

page:           ## the live page from its source, into page/dist; needs Node 20.19 or newer
	page/build

page-check:     ## the live page in a real browser; screenshots in target/page
	tests/page/check

picture:        ## docs/live.png: a key of the demo in the moment of a fold
	FILE=tests/page/picture.py tests/page/check docs

advisories:     ## known vulnerabilities of dependencies, by a list that is fetched: not part of .ci/run
	$(CARGO_DENY)
	cargo deny check advisories

cassandra:      ## three nodes on 127.0.0.1 to 127.0.0.3
	tests/cassandra/cluster start

cassandra-stop:
	tests/cassandra/cluster stop

versions:       ## the contract suite, the facts and a short load on Cassandra 4.1, 5.0 and 6.0, or on RELEASES; target/versions
	tests/cassandra/versions

upgrade:        ## three nodes from Cassandra 4.1 to 5.0 under load, one after the other; target/upgrade/report.txt
	tests/cassandra/upgrade

scylla:         ## the contract suite and the facts about rows, on the three nodes of CASSANDRA_CONTACT_POINTS or compose/scylla.yml
	CASSANDRA_CONTACT_POINTS=$${CASSANDRA_CONTACT_POINTS:-172.28.0.11:9042,172.28.0.12:9042,172.28.0.13:9042} \
	  cargo test --locked --no-fail-fast --test contract_cassandra --test conformance -- suite:: rows::

load:           ## the multi-process load test on the repository's cluster
	tests/cassandra/cluster start
	ORDERFREE_CASSANDRA=$$(tests/cassandra/cluster contact-points) ORDERFREE_APPLY_SCHEMA=true \
	  cargo run --release --locked -- load --pods 4 --duration 60s --kill-every 7s --pause-every 11s

MINUTES ?= 30

soak:           ## every kind of fault for MINUTES on the repository's cluster, RESETS=1s with resets; target/soak/report.md
	MINUTES=$(MINUTES) tests/pods/soak/run

storm:          ## the soak with ids: each update is repeated to random pods until it is acked, some also after that
	MINUTES=$(MINUTES) IDS=minute,short tests/pods/soak/run

regions:        ## two data centres count for MINUTES, one is lost, the link is cut, keys are reset; target/regions/report.md
	MINUTES=$(MINUTES) tests/pods/regions/run regions

growth:         ## a third replica, then a second data centre that is lost again, under load; target/growth/report.md
	tests/pods/regions/run growth

topology:       ## nodes join, leave, are replaced, repaired and restored under load; target/topology/report.md
	tests/pods/regions/run topology

N ?= 100000
SEED ?= 0

sim:            ## simulated schedules of seeds SEED to SEED + N - 1, and every broken rule found
	SIM_N=$(N) SIM_SEED=$(SEED) cargo test --release --locked --test sim -- --nocapture

exhaustive:     ## every schedule of a small world, and every broken rule found in it
	cargo run --release --locked -p orderfree-exhaustive

shuttle:        ## the mutators in N interleavings, twice
	SHUTTLE_N=$(N) cargo test --release --locked -p orderfree-shuttle

laws:           ## every law of every kind, N cases each
	PROPTEST_CASES=$(N) cargo test --release --locked -p orderfree-core --lib law

long:           ## a key of 600,000 rows, read and folded in parts on both stores
	tests/cassandra/cluster start
	LONG_ROWS=300000 cargo test --locked --test contract_embedded --test contract_cassandra -- --nocapture a_long_key

deletes:        ## a key is deleted and counted again, 10,000 times on a file and 100 times on three nodes
	DELETES=10000 cargo test --release --locked --test operations -- --nocapture deletes::
	tests/cassandra/cluster start
	DELETES=100 cargo test --release --locked --test resets -- --nocapture deletes::

# Fewer than of the others: each copy is met by three processes.
damage: N = 200
damage:         ## N damaged copies of a file of 55 MB, each served, exported and examined
	DAMAGE_MB=55 DAMAGE_N=$(N) DAMAGE_SEED=$(SEED) cargo test --locked --test damage -- --nocapture

kinds:          ## every kind on ten pods, 100,000 ops each, with kills and folds, against one process
	tests/cassandra/cluster start
	KINDS_PODS=10 KINDS_OPS=100000 cargo test --release --locked --test kinds -- --nocapture

kinds-table:    ## bytes and times of each kind, the table of docs/kinds.md
	cargo run --release --locked -p orderfree-core --example table

interchange:    ## sketches to and from Python's DataSketches
	core/tests/interchange/check

manifests:      ## Dockerfile, compose file and Kubernetes manifests, checked offline
	tests/files/manifests/validate

monitoring:     ## alerts, their tests, and what the dashboard asks
	tests/files/monitoring/check

containers:     ## pods of this build in real containers, rolled under load; target/containers/report.md
	cargo build --locked
	tests/pods/containers/run target/debug/orderfree

overload:       ## ten times what a pod can do, for two minutes each way, and what becomes of it
	OVERLOAD_SECONDS=$${OVERLOAD_SECONDS:-120} cargo test --release --locked --test operations -- --nocapture --test-threads 1 overload::

idle:           ## a million idle keys are forgotten while others are counted
	IDLE_KEYS=$${IDLE_KEYS:-1000000} cargo test --release --locked --test operations -- --nocapture idle::

fuzz-check:     ## the fuzz targets compile for libFuzzer; tests/harness/fuzz/README.md says how to run them
	cargo clippy --manifest-path tests/harness/fuzz/libfuzzer/Cargo.toml --target-dir target --all-targets --locked -- -D warnings
	cargo fmt --manifest-path tests/harness/fuzz/libfuzzer/Cargo.toml --check

schemathesis:   ## a minute of requests that follow and break /openapi.json, to a server of its own
	tests/files/openapi/schemathesis

bench:          ## orderfree beside native counters, plain writes and Redis, in every mode; target/bench
	bench/run

bench-quick:    ## the ratios on three nodes, in six minutes; target/bench/quick.json
	bench/run quick

SHARD ?= 0/1

mutants:        ## breaks core in every place, each by itself; in parts by SHARD=0/8 to 7/8
	SHARD=$(SHARD) core/mutants
