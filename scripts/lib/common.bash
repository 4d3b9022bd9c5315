# Shared by scripts/dev and scripts/test; sourced, not run. It finds the project's
# root and makes sure that the needs are there, or says exactly what to install.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

say() { printf '%s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# need_go: Go of at least go.mod's version. An older one from 1.21 on fetches the
# right one by itself, unless GOTOOLCHAIN=local forbids it; so ask go, not a number.
need_go() {
  local wanted
  wanted=$(awk '$1 == "go" { print $2; exit }' "$root/go.mod")
  have go || die "Go $wanted or newer is needed: https://go.dev/doc/install (or: brew install go)"
  (cd "$root" && go list -m >/dev/null) || die "Go $wanted or newer is needed: https://go.dev/doc/install (here: $(go version 2>/dev/null || true))"
}

# apt_install PACKAGE…: as root, where apt knows all the packages; else fails.
apt_install() {
  have apt-get && have apt-cache && [ "$(id -u)" -eq 0 ] || return 1
  local package
  for package in "$@"; do
    apt-cache policy "$package" 2>/dev/null | grep -q 'Candidate: [^(]' || return 1
  done
  DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" >&2
}

# need_java: for the Pub/Sub emulator, unless one runs already.
need_java() {
  [ -z "${PUBSUB_EMULATOR_HOST:-}" ] || return 0
  # macOS has a java that only says that there is none: run it.
  if [ -x "${JAVA_HOME:-/nonexistent}/bin/java" ] || java -version >/dev/null 2>&1; then return 0; fi
  say "Java is missing (the Pub/Sub emulator runs on it); trying apt…"
  apt_install default-jre-headless || die "Java 11 or newer is needed for the Pub/Sub emulator. Debian, Ubuntu: apt-get install default-jre-headless; macOS: brew install openjdk; others: https://adoptium.net"
}

node_serves() {
  have node && have npm && node -e 'process.exit(parseInt(process.versions.node, 10) >= 18 ? 0 : 1)'
}

# need_node: for the tests that verify our signatures with Node's libraries.
need_node() {
  if node_serves; then return 0; fi
  say "Node 18 or newer with npm is missing; trying apt…"
  if apt_install nodejs npm && node_serves; then return 0; fi
  die "Node 18 or newer with npm is needed: https://nodejs.org (Debian, Ubuntu: apt-get install nodejs npm; macOS: brew install node)"
}

# need_python: for the test that reads the README's Python.
need_python() {
  if python3 -c 'import ast, json' 2>/dev/null; then return 0; fi
  say "Python 3 is missing; trying apt…"
  if apt_install python3-minimal && python3 -c 'import ast, json' 2>/dev/null; then return 0; fi
  die "Python 3 is needed: https://www.python.org (Debian, Ubuntu: apt-get install python3; macOS: brew install python)"
}

# need_emulators TOOL: TOOL is the built withemulators. Installs what is missing, in
# the way gcloud itself was installed.
need_emulators() {
  local missing
  missing=$("$1" -check 2>&1) && return 0
  say "$missing"
  say "Trying to install the emulators…"
  if apt_install google-cloud-cli-spanner-emulator google-cloud-cli-pubsub-emulator; then
    :
  elif have gcloud && gcloud components install --quiet cloud-spanner-emulator pubsub-emulator >&2; then
    :
  elif docker_emulators; then
    return 0
  fi
  "$1" -check || die "The emulators could not be installed automatically. Install them as said above, then run this again."
}

# docker_emulators: Google's own images, where a Docker daemon answers. The
# containers end with this script (end_docker_emulators).
docker_containers=()
docker_emulators() {
  have docker && docker info >/dev/null 2>&1 || return 1
  local id
  if [ -z "${SPANNER_EMULATOR_HOST:-}" ]; then
    id=$(docker run -d --rm -p 127.0.0.1::9010 gcr.io/cloud-spanner-emulator/emulator) || return 1
    docker_containers+=("$id")
    SPANNER_EMULATOR_HOST=$(docker port "$id" 9010/tcp | head -n 1) || return 1
    export SPANNER_EMULATOR_HOST
  fi
  if [ -z "${PUBSUB_EMULATOR_HOST:-}" ]; then
    id=$(docker run -d --rm -p 127.0.0.1::8085 gcr.io/google.com/cloudsdktool/google-cloud-cli:emulators \
      gcloud beta emulators pubsub start --host-port=0.0.0.0:8085) || return 1
    docker_containers+=("$id")
    PUBSUB_EMULATOR_HOST=$(docker port "$id" 8085/tcp | head -n 1) || return 1
    export PUBSUB_EMULATOR_HOST
  fi
}

end_docker_emulators() {
  [ ${#docker_containers[@]} -eq 0 ] || docker rm -f "${docker_containers[@]}" >/dev/null 2>&1 || true
}

# need_terraform: 1.9 or newer, from where tools are found, or from a version manager
# or the package sources of Terraform's maker.
need_terraform() {
  local version
  if ! have terraform; then
    say "Terraform is missing; trying apt and Homebrew…"
    apt_install terraform || { have brew && brew install hashicorp/tap/terraform >&2; } || true
  fi
  version=$(terraform version 2>/dev/null | sed -n '1s/^Terraform v//p')
  case $version in
    [2-9].* | 1.9.* | 1.[1-9][0-9].*) return 0 ;;
  esac
  say "Terraform 1.9 or newer is needed for terraform/ (here: ${version:-none}): https://developer.hashicorp.com/terraform/install"
  return 1
}
