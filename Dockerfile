# The image of Orderfree: one binary, no shell script around it, not root.
#
#   docker build -t orderfree:0.1.0 .
#   docker run --rm -p 127.0.0.1:8080:8080 -e ORDERFREE_INSECURE=true \
#     -e ORDERFREE_DATA=/var/lib/orderfree/orderfree.redb -v orderfree:/var/lib/orderfree \
#     orderfree:0.1.0
#
# Both base images are arguments, for mirrors, for digests and for machines that cannot pull these.
# The runtime image needs glibc, of the builder's Debian release or a newer one, and nothing else: a
# distroless `cc` image works as well as this default, and has no shell or package manager to
# attack.
ARG BUILD_IMAGE=rust:1.95-bookworm
ARG RUNTIME_IMAGE=debian:bookworm-slim

FROM ${BUILD_IMAGE} AS build
# It puts the list of all dependencies into the binary, which `cargo audit bin` and `rust-audit-info`
# read: what is in an image can be told from the image alone.
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    cargo install cargo-auditable --version 0.7.7 --locked
WORKDIR /src
COPY . .
# What `GET /version` says it was built from.
ARG REVISION=unknown
# Only downloads are cached between builds. A cached target folder would be faster, and could hand a
# stale binary to a tree whose files are older than those of the last build: cargo compares times.
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    ORDERFREE_COMMIT="${REVISION}" cargo auditable build --release --locked --bin orderfree \
    && install -D -m 0755 target/release/orderfree /out/orderfree \
    && install -D -m 0644 /etc/ssl/certs/ca-certificates.crt /out/ca-certificates.crt \
    && install -d /out/data

FROM ${RUNTIME_IMAGE}
COPY --from=build /out/orderfree /usr/local/bin/orderfree
# For collectors of traces and servers that are called by https. Slim images have none.
COPY --from=build /out/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
# For the embedded store; the file's folder must belong to the user below. Not a VOLUME: with
# Cassandra nothing is written here, and every pod would leave an anonymous volume behind.
COPY --from=build --chown=65532:65532 /out/data /var/lib/orderfree
WORKDIR /var/lib/orderfree

# A number, not a name: Kubernetes can tell from a number alone that it is not root (runAsNonRoot).
USER 65532:65532

# No client outside a container can reach its loopback. ORDERFREE_INSECURE is deliberately not set here: you
# must state that something else protects the port, or `serve` refuses to start.
ENV ORDERFREE_LISTEN=0.0.0.0:8080
EXPOSE 8080

# SIGTERM: unready, 5 s more of service, then up to 25 s of draining. Give it 45 s (`docker stop -t
# 45`): Docker kills after 10 s by itself, and the updates in flight then end as `unknown`.
STOPSIGNAL SIGTERM

# The binary asks itself, so the image needs no curl. Kubernetes ignores this line and has its own
# probes; podman keeps it only with `--format docker`.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 CMD ["orderfree", "health"]

# Exec form, so that the signal reaches the binary. `serve` is the default without a subcommand.
ENTRYPOINT ["orderfree"]

# Last, because a change here rebuilds every later layer.
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Orderfree" \
      org.opencontainers.image.description="Counters and other mergeable data types over HTTP on Apache Cassandra, without coordination" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0" \
      org.opencontainers.image.vendor="The Orderfree authors" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
