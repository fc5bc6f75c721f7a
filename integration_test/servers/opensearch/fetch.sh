#!/usr/bin/env bash
# fetch.sh DIR: fills DIR with an OpenSearch node, version $VERSION (2.x): the
# server's jars, the modules that tests need and a launcher.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mvn -B -ntp -q -f "$here/pom.xml" -Dopensearch.version="$VERSION" \
  org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
  -DincludeScope=runtime -DoutputDirectory="$1/lib" >&2

# The server loads a module only from a folder of its own; what the module
# depends on may stay in lib.
for module in transport-netty4 analysis-common lang-painless reindex ingest-common mapper-extras; do
  for jar in "$1/lib/$module"{,-client}-"$VERSION".jar; do
    if [[ ! -f $jar ]]; then continue; fi
    class=$(jar tf "$jar" | sed -n 's|/|.|g; s|Plugin\.class$|Plugin|p')
    mkdir -p "$1/modules/$module"
    mv "$jar" "$1/modules/$module/"
    printf '%s\n' name="$module" description="$module" version="$VERSION" opensearch.version="$VERSION" \
      java.version=11 classname="$class" >"$1/modules/$module/plugin-descriptor.properties"
  done
done
# Except painless's interfaces, which read resources of painless itself.
mv "$1/lib/opensearch-scripting-painless-spi-$VERSION.jar" "$1/modules/lang-painless/"

javac --release 17 -nowarn -cp "$1/lib/*" -d "$1/launcher" "$here/Launcher.java" >&2
cp "$here/log4j2.properties" "$1/launcher/"
