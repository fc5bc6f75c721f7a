#!/usr/bin/env bash
# Builds the image of a test server without an image registry: a JRE from
# Debian's packages, the server from Maven's.
#
#   build.sh sluice-test/kafka:4.4.0            builds it, unless it is up to date
#   build.sh --check sluice-test/kafka:4.4.0    succeeds when it is up to date
#
# The label `recipe` says from which scripts an image was made. Package updates
# alone change no recipe: `docker rmi` the image to fetch anew.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
base=sluice-test/jre:1

# recipe SERVER prints the hash of all that its image is made from.
recipe() { (cd "$here" && find build.sh jre "$1" -type f -exec sha256sum {} + | LC_ALL=C sort | sha256sum | cut -c1-16); }
up_to_date() { [[ $(docker image inspect --format '{{index .Config.Labels "recipe"}}' "$1" 2>/dev/null) == "$(recipe "$2")" ]]; }

check=
if [[ ${1-} == --check ]]; then check=1 && shift; fi
image=${1:?usage: build.sh [--check] sluice-test/SERVER:VERSION}
server=${image#*/} server=${server%:*} version=${image##*:}

if up_to_date "$image" "$server"; then exit 0; fi
if [[ -n $check ]]; then exit 1; fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/jre" "$work/server"
if ! up_to_date "$base" jre; then
  "$here/jre/import.sh" "$work/jre" "$base" "$(recipe jre)"
fi
VERSION=$version "$here/$server/fetch.sh" "$work/server"
cp "$here/$server/"{Dockerfile,entrypoint.sh} "$work/server/"
docker build -q --label "recipe=$(recipe "$server")" --build-arg BASE="$base" -t "$image" "$work/server"
