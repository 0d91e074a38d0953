#!/bin/sh
# Submit a task, watch the council, and read the verdict. Needs only curl.
#   examples/curl.sh "Name three risks of a big rewrite." [http://127.0.0.1:8080]
# Reads DELIBERATE_URL where no URL is given, and DELIBERATE_API_KEY where the gateway asks for keys.
set -eu

task=${1:-Name three risks of a big rewrite, and what to do about each.}
url=${2:-${DELIBERATE_URL:-http://127.0.0.1:8080}}
# curl takes options from standard input, so that the key is not in the list of processes.
ask() {
    printf '%s' "${DELIBERATE_API_KEY:+header = \"Authorization: Bearer $DELIBERATE_API_KEY\"}" \
        | curl -sS --fail-with-body --config - "$@"
}
# This key makes retries safe: they return the same deliberation.
key=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
# JSON requires these escapes.
text=$(printf '%s' "$task" | sed 's/\\/\\\\/g; s/"/\\"/g' | tr '\n\t' '  ')

location=$(ask --retry 3 --retry-connrefused -D - -o /dev/null "$url/deliberations" \
    -H 'Content-Type: application/json' -H "Idempotency-Key: $key" \
    -d "{\"task\": \"$text\", \"num_agents\": 3}" | tr -d '\r' | sed -n 's/^[Ll]ocation: //p')
[ -n "$location" ] || exit 1
echo "accepted: $url$location"

# Everything that happens, without the single tokens; -N prints each event as it comes. Ends with the deliberation.
ask -N "$url$location/events?deltas=false&after=0" -H 'Accept: text/event-stream' \
    | sed -n 's/^event: //p'

ask "$url$location"
echo
