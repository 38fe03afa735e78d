#!/usr/bin/env bash
# The packages in an empty Debian: installed, used, built against, purged.
. tests/deploy/library.sh
needs_root
needs mmdebstrap dpkg-deb lintian

readonly root=$work/root
apt() {
  in_root "$root" apt-get --quiet --quiet -o Acquire::Retries=3 "$@"
}

package=$(packages)
readonly development=${package/paramshard_/paramshard-dev_}
step "lintian"
lintian "$package" "$development" 2>/dev/null || true
expect "lintian finds no error" lintian --quiet --fail-on error --display-level '>=error' "$package" "$development"

step "install"
root_with "$root" apt
cp /etc/resolv.conf "$root/etc/resolv.conf"
cp "$package" "$development" "$root/var/cache/apt/archives/"
apt update || skip "Debian's mirror cannot be reached"
apt install --yes --no-install-recommends "/var/cache/apt/archives/${package##*/}" >"$work/install.log" 2>&1 ||
  { tail -n 20 "$work/install.log" && exit 1; }
expect "the user is there" in_root "$root" getent passwd paramshard
expect "programs start" in_root "$root" paramshardd --version
expect "units are well" in_root "$root" systemd-analyze verify /usr/lib/systemd/system/paramshardd.service \
  /usr/lib/systemd/system/paramshardd@one.service

step "the demo"
demo() {
  in_root "$root" setpriv --reuid=paramshard --regid=paramshard --clear-groups \
    paramshard-demo --bin-dir /usr/bin --out /tmp/demo --epochs 4 >"$work/demo.log" 2>&1
}
expect "trainings go on" demo
expect "bit for bit" grep 'All trainings ended in the same state, bit for bit' "$work/demo.log"

step "upgrade"
in_root "$root" sh -c 'echo PARAMSHARD_DEVICE=cpu:7 >>/etc/paramshard/paramshardd.env'
install_into "$root" "$package" >/dev/null
expect "settings stay" grep --quiet cpu:7 "$root/etc/paramshard/paramshardd.env"

step "a project that uses paramshard-dev"
toolkit=$(readlink --canonicalize /usr/local/cuda || true)
if [[ ! -d $toolkit && $(dpkg-deb --contents "$development") == *client_cuda* ]]; then
  echo "left out: these packages were built with CUDA, and there is no toolkit beside"
else
  apt install --yes --no-install-recommends g++ cmake ninja-build pkgconf \
    "/var/cache/apt/archives/${development##*/}" >"$work/install.log" 2>&1 ||
    { tail -n 20 "$work/install.log" && exit 1; }
  mkdir -p "$root/sources/client"
  cp --recursive client/examples "$root/sources/client/examples"
  cp --recursive tests/install/consumer "$root/consumer"
  if [[ -d $toolkit ]]; then
    mkdir -p "$root/usr/local/cuda"
    # Debian 12's CMake does not find toolkits of CUDA 13; this machine's CMake has made the packages.
    cp /usr/share/cmake-3.25/Modules/FindCUDAToolkit.cmake "$root/usr/share/cmake-3.25/Modules/" 2>/dev/null || true
  fi
  expect "it is built" in_root "$root" sh -ec 'export PATH=$PATH:/usr/local/cuda/bin
    cmake -S consumer -B tmp/build -G Ninja -DPARAMSHARD_SOURCES=/sources >/dev/null
    cmake --build tmp/build >/dev/null
    tmp/build/consumer /tmp/no-daemon'
fi

step "purge"
apt purge --yes paramshard paramshard-dev >"$work/purge.log" 2>&1 || { tail -n 20 "$work/purge.log" && exit 1; }
left() {
  find "$root" -xdev -path "$root/var" -prune -o -path "$root/consumer" -prune -o -name '*paramshard*' -print
}
expect "nothing is left" test -z "$(left)"
