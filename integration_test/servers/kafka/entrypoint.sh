#!/usr/bin/env bash
# Runs one broker and controller. Settings come as in the image apache/kafka:
# KAFKA_A_B is a.b, translated by that image's own class, which is in the jars.
set -euo pipefail
export KAFKA_LOG_DIRS=/app/data
mkdir -p /app/mounted /app/run
# A broker that was killed and started again keeps its data.
if [[ ! -e $KAFKA_LOG_DIRS/meta.properties ]]; then
  java -XX:TieredStopAtLevel=1 -cp '/app/lib/*' kafka.docker.KafkaDockerWrapper setup -D /app/config -M /app/mounted -F /app/run
fi
# shellcheck disable=SC2086 # a list of words
exec java ${KAFKA_HEAP_OPTS:--Xms256m -Xmx768m} -Djava.awt.headless=true \
  -Dlog4j2.configurationFile=/app/run/log4j2.yaml -cp '/app/lib/*' kafka.Kafka /app/run/server.properties
