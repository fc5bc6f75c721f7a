#!/usr/bin/env bash
# fetch.sh DIR: fills DIR with a broker's jars, version $VERSION.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mvn -B -ntp -q -f "$here/pom.xml" -Dkafka.version="$VERSION" \
  org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
  -DincludeScope=runtime -DoutputDirectory="$1/lib" >&2
mkdir -p "$1/config"
cp "$here/log4j2.yaml" "$1/config/"
