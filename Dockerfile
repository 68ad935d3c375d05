# Both programs, each an image of its own: docker build --target dispatch-manager, or dispatch-admission.

# Go compiles for every platform on the one that builds.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS
ARG TARGETARCH
WORKDIR /src
COPY go.mod go.sum ./
COPY adapter/ adapter/
COPY api/ api/
COPY cmd/ cmd/
COPY controllers/ controllers/
COPY internal/ internal/
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -ldflags='-s -w' -o bin/ ./cmd/...

# No shell and no libraries; the system's CA certificates, for targets whose API server has a public one.
FROM gcr.io/distroless/static:nonroot AS base
# By number: the kubelet cannot tell whether a name is root's.
USER 65532:65532

FROM base AS dispatch-manager
COPY --from=build /src/bin/dispatch-manager /
ENTRYPOINT ["/dispatch-manager"]

FROM base AS dispatch-admission
COPY --from=build /src/bin/dispatch-admission /
ENTRYPOINT ["/dispatch-admission"]
