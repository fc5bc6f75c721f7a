#!/usr/bin/env bash
# fetch.sh DIR: fills DIR with Elastic's own integ-test distribution, version
# $VERSION (8.x): the release's server without a JDK and without most modules.
# A small plugin adds what clients miss in it. Elastic License 2.0: fetched for
# tests, never shipped.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# In a folder of its own: the goal leaves marks where it runs, and would take
# them for work already done.
mkdir "$1/unpack"
(cd "$1/unpack" && mvn -B -ntp -q org.apache.maven.plugins:maven-dependency-plugin:3.8.1:unpack \
  -Dartifact="org.elasticsearch.distribution.integ-test-zip:elasticsearch:$VERSION:zip" -DoutputDirectory=. >&2)
mv "$1/unpack/elasticsearch-$VERSION" "$1/elasticsearch"
rm -r "$1/unpack"

plugin=$1/elasticsearch/plugins/missing
mkdir -p "$plugin" "$1/classes"
javac --release 17 -nowarn -XDsuppressNotes -d "$1/classes" -cp "$1/elasticsearch/lib/*" "$here/Missing.java" >&2
jar cf "$plugin/missing.jar" -C "$1/classes" .
rm -r "$1/classes"
printf '%s\n' name=missing description='what clients miss in the integ-test distribution' version=1 \
  elasticsearch.version="$VERSION" java.version=17 classname=Missing >"$plugin/plugin-descriptor.properties"
