#!/usr/bin/env bash
# Makes the real servers of the integration tests available and prints the
# environment that the tests need; everything else goes to stderr.
#
#   env=$(integration_test/servers/up.sh) && eval "$env"
#   env=$(integration_test/servers/up.sh kafka opensearch) && eval "$env"
#
# (eval "$(up.sh)" would hide a failure.) Without arguments: kafka and
# elasticsearch. An image named in SLUICE_KAFKA_IMAGE, SLUICE_ELASTICSEARCH_IMAGE
# or SLUICE_OPENSEARCH_IMAGE is used as it is. Otherwise the public image is
# used where it is present or can be pulled, else an image is built from package
# registries (build.sh), once: later runs find it again by its label.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

declare -A public=(
  [kafka]=apache/kafka:4.4.0
  [elasticsearch]=elasticsearch:8.19.21
  [opensearch]=opensearchproject/opensearch:2.19.6
)

say() { echo "servers: $*" >&2; }
fail() {
  say "$*"
  exit 1
}
answers() { docker version >/dev/null 2>&1; }
present() { docker image inspect "$1" >/dev/null 2>&1; }
root_on_debian() { [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; }

# engine_up makes a Docker engine answer, installing and starting one if need be.
engine_up() {
  if answers; then return; fi
  if [[ -n ${DOCKER_HOST-} ]]; then
    fail "no Docker engine answers at DOCKER_HOST=$DOCKER_HOST: start it, or unset DOCKER_HOST"
  fi
  if ! command -v dockerd >/dev/null; then
    root_on_debian || fail "no Docker engine answers: install and start Docker, join its group or set DOCKER_HOST (root on Debian or Ubuntu: this script does it)"
    say "installing docker.io"
    local packages=(docker.io iptables)
    apt-get update -qq >&2
    # The client is part of docker.io up to Debian 12, and a package of its own later.
    if apt-cache show docker-cli >/dev/null 2>&1; then packages+=(docker-cli); fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >&2
    if answers; then return; fi
  fi
  [[ $(id -u) == 0 ]] || fail "the Docker engine is installed but does not answer: start it as root, or join its group"
  start_engine
}

start_engine() {
  local log=/var/log/dockerd.log pid='' deadline=$((SECONDS + 60))
  say "starting the Docker engine"
  if [[ -d /run/systemd/system ]]; then
    systemctl start docker >&2
  else
    # Some kernels have one of the two iptables back ends only.
    if ! iptables -t nat -S >/dev/null 2>&1; then
      update-alternatives --set iptables /usr/sbin/iptables-legacy >&2
    fi
    # An engine that was killed leaves these, and the next one refuses to start
    # while such a number is any process's, even a zombie's.
    rm -f /var/run/docker.pid /var/run/docker/containerd/containerd.pid
    # It must hold no descriptor of ours or of who called us: whoever reads this
    # script's output, or waits for a lock, would wait for the engine's end.
    (
      for fd in /proc/self/fd/*; do
        fd=${fd##*/}
        if ((fd > 2)); then eval "exec $fd>&-"; fi
      done
      exec setsid dockerd </dev/null >"$log" 2>&1
    ) &
    pid=$!
  fi
  until answers; do
    if ((SECONDS > deadline)) || { [[ -n $pid ]] && ! kill -0 "$pid" 2>/dev/null; }; then
      if [[ -n $pid ]]; then tail -n 20 "$log" >&2; fi
      fail "the Docker engine does not come up: start one by hand, its log says why"
    fi
    sleep 0.2
  done
}

# image_of SERVER prints the name of a usable image, pulling or building one.
image_of() {
  local image=${public[$1]} own=sluice-test/$1:${public[$1]##*:} named="SLUICE_${1^^}_IMAGE"
  if [[ -n ${!named-} ]]; then
    present "${!named}" || docker pull -q "${!named}" >&2 || fail "the image $named=${!named} is not here and cannot be pulled"
    echo "${!named}"
  elif present "$image"; then
    echo "$image"
  elif "$here/build.sh" --check "$own"; then
    echo "$own"
  elif docker pull -q "$image" >&2 2>/dev/null; then
    echo "$image"
  else
    say "$image cannot be pulled: building $own"
    need_builders
    "$here/build.sh" "$own" >&2 || fail "$own could not be built, and $image cannot be pulled: make an image registry or the Debian and Maven package registries reachable, or name an image in $named"
    echo "$own"
  fi
}

# need_builders makes sure of what build.sh works with.
need_builders() {
  if ! command -v apt-get >/dev/null; then
    fail "local server images are built from Debian packages, and this is not Debian: make an image registry reachable, or name images in SLUICE_KAFKA_IMAGE, SLUICE_ELASTICSEARCH_IMAGE"
  fi
  if command -v mvn >/dev/null && command -v javac >/dev/null; then return; fi
  root_on_debian || fail "building the server images needs Maven and a JDK from 17 on: install the packages maven and default-jdk-headless"
  say "installing maven and a JDK"
  apt-get update -qq >&2
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends maven default-jdk-headless >&2
}

servers=("$@")
if ((${#servers[@]} == 0)); then servers=(kafka elasticsearch); fi
for server in "${servers[@]}"; do
  [[ -n ${public[$server]-} ]] || fail "unknown server $server: there are ${!public[*]}"
done

exec 9>"${TMPDIR:-/tmp}/sluice-servers.lock"
flock 9 # one start and one build at a time
engine_up
environment=()
for server in "${servers[@]}"; do
  image=$(image_of "$server")
  environment+=("export SLUICE_${server^^}_IMAGE=$image")
done
printf '%s\n' "${environment[@]}"
# The reaper is one more image to pull; the tests clean up by session label.
echo 'export TESTCONTAINERS_RYUK_DISABLED=true'
# A machine with a /.dockerenv passes for a container: testcontainers would look
# for mapped ports at its default gateway, outside this machine.
case ${DOCKER_HOST-unix:} in unix:*) echo 'export TESTCONTAINERS_HOST_OVERRIDE=127.0.0.1' ;; esac
