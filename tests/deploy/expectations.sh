# Expectations of the tests of deploy/, on this machine and in the roots that they make. Every test sources this file.

# expect WHAT COMMAND...: ends the test if the command fails, and prints WHAT. The function `show`, if defined, shows
# the rest.
expect() {
  local what=$1
  shift
  if ! "$@"; then
    echo "FAILED: $what: $*"
    ! declare -F show >/dev/null || show
    exit 1
  fi
  echo "ok: $what"
}

# await SECONDS COMMAND...: until it succeeds; fails when it does not in time.
await() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < deadline)) || return 1
    sleep 0.1
  done
}
