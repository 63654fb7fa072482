#!/bin/sh
# A client of Pabal's mailbox in POSIX sh.
#
#   mailbox.sh DIR CLIENT publish QUEUE MESSAGE       prints the key of the message
#   mailbox.sh DIR CLIENT consume QUEUE [WAIT_MS]     prints the answer with message and lease
#   mailbox.sh DIR CLIENT ack KEY LEASE
#   mailbox.sh DIR CLIENT nack KEY LEASE REASON
#   mailbox.sh DIR CLIENT request COMMAND PAYLOAD     prints the whole answer
#
# DIR is the mailbox of the manager; MESSAGE and PAYLOAD are JSON; the other words must hold no quotes and no backslashes.
# Ends with 0 if the request was done, 1 if there was no message, 2 if it was refused, 3 if there was no answer.
set -eu

usage() {
    sed -n '4,8s/^#   //p' "$0" >&2
    exit 2
}

[ $# -ge 4 ] || usage
dir=$1 client=$2 verb=$3
shift 3
case "$client$*" in *[\\]*) echo "mailbox.sh: a backslash is not supported" >&2; exit 2 ;; esac
number=0

# Prints a value of mailbox.json, in which the manager says how its folders are called.
folder() {
    found=$(sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p" "$dir/mailbox.json" 2>/dev/null) || found=
    printf '%s\n' "${found:-$2}"
}
requests=$dir/$(folder requestsDir requests)
responses=$dir/$(folder responsesDir responses)

# Sends a command with a payload and prints the answer.
ask() {
    number=$((number + 1))
    id="$client-$(date +%s)-$$-$number"
    (
        umask 027
        printf '{"requestId": "%s", "clientId": "%s", "command": "%s", "payload": %s}\n' "$id" "$client" "$1" "$2" \
            >"$requests/$id.json.tmp"
    ) || exit 3
    mv "$requests/$id.json.tmp" "$requests/$id.json" || exit 3 # whole or not at all
    answer="$responses/$client/$id.json"
    looks=0
    until [ -e "$answer" ]; do
        looks=$((looks + 1))
        [ "$looks" -le 6000 ] || { echo "mailbox.sh: no answer: does a manager serve $dir?" >&2; exit 3; }
        sleep 0.01 2>/dev/null || sleep 1
    done
    cat "$answer"
    rm -f "$answer" 2>/dev/null || : # where each client is a user of its own, the manager removes it later
}

# Prints the text of a field of an answer.
text_of() {
    sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p"
}

# Ends with 2 and the reason if an answer is a refusal.
check() {
    case $1 in
    *'"ok":true'*) ;;
    *)
        printf 'mailbox.sh: %s\n' "$1" >&2
        exit 2
        ;;
    esac
}

case $verb:$# in
publish:2)
    found=$(ask publish "{\"queue\": \"$1\", \"message\": $2}")
    check "$found"
    printf '%s\n' "$found" | text_of messageKey
    ;;
consume:[12])
    found=$(ask consume "{\"queue\": \"$1\", \"waitMs\": ${2:-0}}")
    check "$found"
    case ${found#*'"data":'} in '{"message":null'*) exit 1 ;; esac
    printf '%s\n' "$found"
    ;;
ack:2)
    found=$(ask ack "{\"messageKey\": \"$1\", \"leaseId\": \"$2\"}")
    check "$found"
    ;;
nack:3)
    found=$(ask nack "{\"messageKey\": \"$1\", \"leaseId\": \"$2\", \"requeue\": true, \"reason\": \"$3\"}")
    check "$found"
    ;;
request:2)
    found=$(ask "$1" "$2")
    printf '%s\n' "$found"
    check "$found"
    ;;
*) usage ;;
esac
