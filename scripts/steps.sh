# For scripts/test and scripts/verify, which source it: their option, and steps that show when they began and how long
# they took.
#   --server PATH   runs on that server, such as /usr/bin/valkey-server
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case "${1:-}" in
  "") ;;
  --server)
    REDIS_SERVER=$(command -v "${2:?--server needs the path of a server}") || { echo "$0: there is no $2" >&2; exit 2; }
    REDIS_SERVER=$(realpath -s "$REDIS_SERVER")
    export REDIS_SERVER ;;
  *) echo "$0: $1 is unknown; there is --server PATH" >&2; exit 2 ;;
esac

took=()
# NAME COMMAND...
step() {
  local name=$1 begun=$SECONDS
  shift
  printf '\n== %d:%02d  %s: %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$name" "$*"
  "$@"
  took+=("$(printf '%4d s  %s' $((SECONDS - begun)) "$name")")
}

# The last lines of a run in which nothing failed.
done_with_all() {
  printf '\n'
  printf '%s\n' "${took[@]}"
  printf '%4d s  %s: all passed, on %s\n' "$SECONDS" "${0##*/}" "$("${REDIS_SERVER:-redis-server}" --version)"
}
