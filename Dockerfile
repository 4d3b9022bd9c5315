# One small image with all binaries; Cloud Run's command says which one runs. For a
# build that can be repeated to the byte, give both base images by digest.
ARG GO_IMAGE=docker.io/library/golang:1.26
ARG BASE_IMAGE=gcr.io/distroless/static-debian12:nonroot

FROM --platform=$BUILDPLATFORM ${GO_IMAGE} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ARG TARGETOS TARGETARCH
ARG VERSION=devel
ENV GOCACHE=/var/cache/go-build
# The same source gives the same bytes: no paths, no build ids, no time.
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/var/cache/go-build \
    VERSION=${VERSION} GOOS=${TARGETOS} GOARCH=${TARGETARCH} ./scripts/lib/binaries /out

FROM ${BASE_IMAGE}
COPY --from=build /out/ /
USER 65532:65532
EXPOSE 8080
