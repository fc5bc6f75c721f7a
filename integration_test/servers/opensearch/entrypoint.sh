#!/usr/bin/env bash
# Runs one node. As in the public image, an environment variable whose name has
# a dot is a setting, and OPENSEARCH_JAVA_OPTS goes to the JVM. There is no
# security plugin.
set -euo pipefail
# shellcheck disable=SC2086 # a list of words
exec java ${OPENSEARCH_JAVA_OPTS:--Xms512m -Xmx512m} -Djava.awt.headless=true -Dlog4j2.disable.jmx=true \
  -Dlog4j.shutdownHookEnabled=false -cp '/app/launcher:/app/lib/*' Launcher
