#!/usr/bin/env bash
# Imports a small Debian with a shell and a headless JRE as an image.
#
#   import.sh WORKDIR IMAGE RECIPE
#
# The packages are downloaded and unpacked, never configured: no chroot, no
# maintainer scripts, no root needed beyond what the engine asks for.
set -euo pipefail

work=$1 image=$2 recipe=$3
root=$work/root debs=$work/debs

# pick prints the oldest Java that apt knows and the servers run on.
pick() { apt-cache search --names-only '^openjdk-(17|21|25)-jre-headless$' | sort | awk 'NR == 1 { print $1 }'; }
jre=$(pick)

# With an empty status file apt resolves everything down to libc.
touch "$work/status"
mkdir -p "$debs/partial"
fetch() {
  apt-get -qq -y -o Dir::State::status="$work/status" -o Dir::Cache::archives="$debs" -o APT::Sandbox::User=root \
    --no-install-recommends --download-only install bash coreutils sed grep mawk hostname tzdata netbase "$jre" >&2
}
if [[ -z $jre ]] || ! fetch; then # no package lists, or old ones
  apt-get update -qq >&2
  jre=$(pick)
  fetch
fi

# Debian's merged layout first; dpkg-deb -x would replace the links by folders.
mkdir -p "$root"/usr/{bin,sbin,lib,lib64}
ln -s usr/bin usr/sbin usr/lib usr/lib64 "$root/"
for deb in "$debs"/*.deb; do
  dpkg-deb --fsys-tarfile "$deb" | tar -C "$root" --keep-directory-symlink -x
done
rm -rf "$root"/usr/share/{doc,man,info,locale,lintian,fonts} "$root"/usr/lib/jvm/*/{man,docs}

# What the maintainer scripts would have done.
printf '%s\n' 'root:x:0:0::/root:/bin/bash' 'app:x:1000:1000::/app:/bin/bash' >"$root/etc/passwd"
printf '%s\n' 'root:x:0:' 'app:x:1000:' >"$root/etc/group"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
ln -sf mawk "$root/usr/bin/awk"
(cd "$root" && ln -s "$(echo usr/lib/jvm/java-[0-9][0-9]-openjdk-*)" java)
install -d -m 1777 "$root/tmp"
install -d "$root/app"

# Owners are set here, so that the build user's own do not matter.
tar -C "$root" --numeric-owner --owner=0 --group=0 --exclude=./app -c . >"$work/root.tar"
tar -C "$root" --numeric-owner --owner=1000 --group=1000 -rf "$work/root.tar" ./app
docker import --change 'ENV PATH=/java/bin:/usr/sbin:/usr/bin JAVA_HOME=/java LANG=C.UTF-8 HOME=/app' \
  --change 'WORKDIR /app' --change 'USER 1000' --change "LABEL recipe=$recipe" "$work/root.tar" "$image" >&2
