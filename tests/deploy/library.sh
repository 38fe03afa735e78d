# Functions of the tests of deploy/. Every test sources this file, in the root of the repository.
set -euo pipefail
. tests/deploy/expectations.sh

readonly cache=$PWD/build/deploy        # results that are made only once
readonly skipped=77                     # the exit status of a test that could not run
readonly work=$(mktemp --directory)     # of this test; on a disk, for roots take room
trap 'rm -rf --one-file-system "$work"' EXIT

# skip REASON: the reason is the last line, which `./dev test-deploy` repeats.
skip() {
  echo "skipped: $*" >&2
  exit $skipped
}

# needs COMMAND...: each is a part of a package that `./dev deps deploy` installs.
needs() {
  local command
  for command in "$@"; do
    command -v "$command" >/dev/null || skip "no $command: ./dev deps deploy installs it"
  done
}

needs_root() {
  ((EUID == 0)) || skip "namespaces with several users are root's to make"
  unshare --mount --pid --fork --uts --ipc --net true 2>/dev/null || skip "this machine gives no namespaces"
}

step() {
  echo "-- $*"
}

suite() {
  (. /etc/os-release && echo "${VERSION_CODENAME-}")
}

# root_with DIR PACKAGE...: a root of this Debian with these packages and their dependencies, from a cached copy.
root_with() {
  local dir=$1 made
  shift
  needs mmdebstrap
  made=$cache/$(suite)-$(echo "$*" | md5sum | cut --characters=-12).tar
  mkdir -p "$cache" "$dir"
  if [[ ! -e $made ]]; then
    mmdebstrap --quiet --variant=apt --include="$(IFS=, && echo "$*")" "$(suite)" "${made%.tar}.new.tar" ||
      skip "mmdebstrap could not make a root; it needs Debian's mirror"
    mv "${made%.tar}.new.tar" "$made"
  fi
  tar --extract --file "$made" --directory "$dir"
}

# with_kernel DIR: mounts the kernel's file systems into that root. Call it in a mount namespace of its own.
with_kernel() {
  local root=$1 device
  mount --make-rprivate /
  mount --bind "$root" "$root"
  mount -t proc proc "$root/proc"
  mount -t tmpfs run "$root/run"
  mount -t tmpfs tmp "$root/tmp"
  mount -t tmpfs dev "$root/dev"
  for device in null zero full random urandom tty fuse; do
    [[ -e /dev/$device ]] || continue
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
  done
  mkdir -p "$root/dev/shm" "$root/dev/pts"
  mount -t tmpfs shm "$root/dev/shm"
  ln -s /proc/self/fd "$root/dev/fd"
  ln -s pts/ptmx "$root/dev/ptmx"
  # Where the test has made room for this machine's toolkit.
  [[ ! -d $root/usr/local/cuda ]] || mount --bind "$(readlink --canonicalize /usr/local/cuda)" "$root/usr/local/cuda"
}
export -f with_kernel

# in_root DIR COMMAND...: with processes of its own, and this machine's network.
in_root() {
  unshare --mount --pid --fork --kill-child --uts --ipc bash -c \
    'with_kernel "$0" && exec chroot "$0" /usr/bin/env --ignore-environment HOME=/root \
      PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"' "$@"
}

# checks_into DIR FILE: copies the checks to run in the root, as checks.sh, with the files that they source.
checks_into() {
  cp "$2" "$1/checks.sh"
  cp tests/deploy/expectations.sh "$1"
}

# install_into DIR FILE.deb: installs without the network. Its dependencies must be there already.
install_into() {
  local dir=$1 file
  shift
  for file in "$@"; do
    cp "$file" "$dir/var/cache/apt/archives/"
    in_root "$dir" dpkg --install "/var/cache/apt/archives/${file##*/}"
  done
}

# certificates DIR: of a world of two daemons, as docs/operate/security.md makes them.
certificates() {
  needs openssl
  mkdir -p "$1"
  (
    cd "$1"
    exec 2>openssl.log
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -keyout ca.key -out ca.pem \
      -subj /CN=paramshard-ca
    for node in 0 1; do
      openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout node$node.key -out node$node.csr \
        -subj /CN=node$node
      openssl x509 -req -in node$node.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -out node$node.pem \
        -extfile <(echo "subjectAltName=URI:spiffe://example.org/paramshard/w1/node/$node"
          echo "extendedKeyUsage=serverAuth,clientAuth")
    done
    rm ca.key -- *.csr *.srl openssl.log
  )
}

# The package of this checkout, made by `./dev test-deploy`.
packages() {
  ls "$cache"/deb/paramshard_*.deb 2>/dev/null || skip "no packages: ./dev test-deploy makes them"
}

# Debian packages that the package of that file depends on.
dependencies_of() {
  dpkg-deb --field "$1" Depends | tr ',' '\n' | sed 's/|.*//; s/(.*//; s/ //g'
}
