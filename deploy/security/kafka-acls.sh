#!/bin/sh
# Gives a user exactly the rights on Kafka that parts of Sluice need, with
# Kafka's own kafka-acls. docs/security.md says what happens without each.
#
#   export BOOTSTRAP=kafka:9093 COMMAND_CONFIG=admin.properties
#   export PRINCIPAL=User:sluice TOPICS="events orders" GROUP=sluice DEAD_LETTERS=dead-letters
#   deploy/security/kafka-acls.sh run dead-letters parked
#   ACTION=--remove deploy/security/kafka-acls.sh parked
#
# COMMAND_CONFIG may be left out, and so may what a part does not name. READ and
# WRITE hold DESCRIBE. KAFKA_ACLS is the command, where kafka-acls is not it.
set -eu

acls() {
  "${KAFKA_ACLS:-kafka-acls}" --bootstrap-server "${BOOTSTRAP:?names a broker, host:port}" \
    ${COMMAND_CONFIG:+--command-config "$COMMAND_CONFIG"} "${ACTION:---add}" \
    --allow-principal "${PRINCIPAL:?is the user, such as User:sluice}" "$@"
}

topics() {
  for topic in ${TOPICS:?are the topics of kafka.topics}; do acls --operation "$1" --topic "$topic"; done
}

if [ $# = 0 ]; then
  echo "usage: $0 run|dead-letters|parked|letters|validate|init|reset|migrate|migrate-topics ..." >&2
  exit 2
fi
for part in "$@"; do
  case $part in
    run) # sluice run, dry-run, explain, lag, generation, skip
      topics Read
      acls --operation Read --group "${GROUP:?is kafka.group_id}"
      ;;
    dead-letters) # dead_letter.topic, which must exist
      acls --operation Write --topic "${DEAD_LETTERS:?is dead_letter.topic}"
      ;;
    parked) # indexer.held: park
      acls --operation Write --topic "${DEAD_LETTERS:?is dead_letter.topic}.parked"
      acls --operation Read --topic "$DEAD_LETTERS.parked"
      acls --operation Create --topic "$DEAD_LETTERS.parked" # unless you make it
      ;;
    letters) # sluice deadletter list, show, replay; beside run
      acls --operation Read --topic "${DEAD_LETTERS:?is dead_letter.topic}"
      topics DescribeConfigs
      ;;
    validate) # beside run: how large records may be, and whether letters are kept
      topics DescribeConfigs
      if [ -n "${DEAD_LETTERS-}" ]; then
        acls --operation DescribeConfigs --topic "$DEAD_LETTERS"
        acls --operation DescribeConfigs --topic "$DEAD_LETTERS.parked"
      fi
      ;;
    reset) # sluice reset; run holds it
      topics Read
      acls --operation Read --group "${GROUP:?is kafka.group_id}"
      ;;
    init | migrate) # sluice routes init, sluice migrate; run holds it
      topics Describe
      acls --operation Describe --group "${GROUP:?is kafka.group_id}"
      ;;
    migrate-topics) # sluice migrate run --source kafka, beside migrate: it reads the topics, in no group
      topics Read
      topics DescribeConfigs
      ;;
    *)
      echo "$0: unknown part $part" >&2
      exit 2
      ;;
  esac
done
