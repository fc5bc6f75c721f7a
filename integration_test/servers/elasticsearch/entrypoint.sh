#!/usr/bin/env bash
# Runs one node. As in the official image, an environment variable whose name
# has a dot is a setting, and ES_JAVA_OPTS goes to the server's JVM.
set -euo pipefail
unset JAVA_HOME # the start script complains about it
settings=(-Enetwork.host=0.0.0.0)
while IFS= read -r -d '' variable; do # bash cannot name such variables, but passes them on
  if [[ $variable =~ ^[a-z0-9_]+(\.[a-z0-9_]+)+= ]]; then settings+=("-E$variable"); fi
done < <(env -0)
exec /app/elasticsearch/bin/elasticsearch "${settings[@]}"
