# One-line recipes; .ci/run calls the same ones.

.PHONY: run test check fmt clippy doc deny cassandra cassandra-stop load manifests

run:            ## serve on the embedded store, http://127.0.0.1:8080
	cargo run --release

test:           ## every test, on a real three-node Cassandra that is fetched, started and stopped
	tests/run

check: fmt clippy doc deny  ## everything that needs no cluster and changes nothing

fmt:
	cargo fmt --all --check

clippy:
	cargo clippy --workspace --all-targets --locked -- -D warnings

doc:
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --document-private-items

deny:           ## licences, bans, sources; installs cargo-deny if it is missing
	cargo deny --version >/dev/null 2>&1 || cargo install --locked cargo-deny --version 0.20.2
	cargo deny check bans licenses sources

cassandra:      ## three nodes on 127.0.0.1 to 127.0.0.3
	tests/cassandra/cluster start

cassandra-stop:
	tests/cassandra/cluster stop

load:           ## the multi-process load test on the repository's cluster
	tests/cassandra/cluster start
	ORDERFREE_CASSANDRA=$$(tests/cassandra/cluster contact-points) ORDERFREE_APPLY_SCHEMA=true \
	  cargo run --release -- load --pods 4 --duration 60s --kill-every 7s --pause-every 11s

manifests:      ## Dockerfile, compose file and Kubernetes manifests, checked offline
	tests/manifests/validate
