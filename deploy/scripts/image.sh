#!/bin/bash
# Builds the image of deploy/Dockerfile as an OCI archive, without a container engine: its last stage decides which
# packages and which settings the image has. Called by `make image`, and with the argument `test` by `make image-test`,
# which builds it twice, compares the two, and runs its programs. Needs root and a Debian mirror.
#
#   PROGRAMS=DIRECTORY     the programs tidegate and kubectl-tidegate; otherwise `make release` builds them
#   MIRROR=URL             another mirror than apt's default
#   SOURCE_DATE_EPOCH=N    the time of all files; otherwise that of the commit
#   IMAGE=FILE             the archive; otherwise target/image/tidegate-VERSION.oci.tar
set -euo pipefail
cd "$(dirname "$0")/../.."

say() { printf 'image: %s\n' "$*"; }
die() { printf 'image: %s\n' "$*" >&2; exit 1; }

[[ $(id -u) == 0 ]] || die "needs root: chroot and mounts"
deploy/scripts/setup.sh image
if [[ -z ${PROGRAMS:-} ]]; then
  deploy/scripts/release.sh
  PROGRAMS=${CARGO_TARGET_DIR:-target}/install
fi
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
created=$(date -u -d "@$SOURCE_DATE_EPOCH" +%FT%TZ)

# The last stage of the Dockerfile: one instruction per line, without comments.
stage=$(sed '/^ *#/d' deploy/Dockerfile | sed ':a; /\\$/ { N; s/ *\\\n */ /; ba }' | tac | sed '/^FROM/q' | tac)
instruction() { sed -n "s/^$1 //p" <<<"$stage"; }
packages=$(instruction RUN | sed -n 's/.*--no-install-recommends \([^&]*\) &&.*/\1/p')
[[ -n $packages ]] || die "the last stage of deploy/Dockerfile has no apt-get install --no-install-recommends"
# The environment of Debian's own images.
settings=(--config.env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
while read -r setting; do settings+=(--config.label "$setting"); done \
  < <(instruction LABEL | grep -o '[a-z.]*="[^"]*"' | sed 's/="\(.*\)"$/=\1/')
while read -r setting; do settings+=("$setting"); done < <(
  { echo "{\"entrypoint\": $(instruction ENTRYPOINT), \"cmd\": $(instruction CMD), \"volume\": $(instruction VOLUME)}"
    instruction EXPOSE | jq -R '{exposedports: (split(" ") | map(. + "/tcp"))}'
  } | jq -r 'to_entries[] | .key as $key | .value[] | "--config.\($key)=\(.)"')
settings+=("--config.stopsignal=$(instruction STOPSIGNAL)")

# Writes the image to a file.
build() {
  local work=$1.new
  rm -rf "$work"
  mkdir -p "$work/programs/usr/local/bin"
  say "Debian 12 with ${packages// /, }"
  # Without apt, manuals, translations and setuid programs. The licences stay.
  mmdebstrap --quiet --variant=essential --include="${packages// /,}" \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --customize-hook='find "$1" -xdev -type f -perm /6000 -exec chmod a-s {} +' \
    bookworm "$work/debian.tar" ${MIRROR:+"$MIRROR"}
  install -m 755 "$PROGRAMS"/{tidegate,kubectl-tidegate} "$work/programs/usr/local/bin/"
  # Only files, so that the directories of Debian stay as they are.
  tar -C "$work/programs" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    -cf "$work/programs.tar" usr/local/bin/{kubectl-tidegate,tidegate}
  local image=$work/oci:$version layer
  umoci init --layout "$work/oci"
  umoci new --image "$image"
  for layer in debian programs; do
    umoci raw add-layer --image "$image" --history.created "$created" --history.created_by "image.sh: $layer" \
      "$work/$layer.tar"
  done
  umoci config --image "$image" --history.created "$created" --created "$created" "${settings[@]}"
  umoci gc --layout "$work/oci"
  tar -C "$work/oci" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -cf "$1" .
  rm -r "$work"
}

# Builds the image again and compares the two, then unpacks it and runs its programs, as a user without rights.
test_image() {
  build "$1.again"
  cmp "$1" "$1.again" || die "two builds differ: $1, $1.again"
  rm "$1.again"
  local work=$1.test root
  rm -rf "$work"
  mkdir -p "$work/oci"
  tar -C "$work/oci" -xf "$1"
  umoci unpack --image "$work/oci:$version" "$work/bundle"
  root=$work/bundle/rootfs
  # Without an API server, with an empty directory.
  mkdir -p "$root/etc/tidegate/manifests"
  sed 's/kubernetes: {}/directory: {path: manifests}/' deploy/kubernetes/daemonset/gateway.yaml \
    >"$root/etc/tidegate/gateway.yaml"
  inside() { chroot --userspec=65534:65534 "$root" /usr/bin/env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin "$@"; }
  inside NODE_NAME=a NODE_IPS=192.0.2.7,2001:db8::7 tidegate check -c /etc/tidegate/gateway.yaml
  inside tidegate version | grep -F "tidegate $version"
  inside kubectl-tidegate --version
  inside bird --version
  [[ -f $root/usr/share/doc/bird2/copyright ]] || die "no licence of bird2"
  local programs=("$root"/usr/local/bin/*)
  ! objdump -h "${programs[@]}" | grep -F .debug_info || die "the programs have debug symbols"
  [[ -z $(find "$root" -xdev -type f -perm /6000) ]] || die "the image has setuid programs"
  local expected='["/usr/local/bin/tidegate","run","-c","/etc/tidegate/gateway.yaml"]'
  [[ $(jq -c .process.args "$work/bundle/config.json") == "$expected" ]] || die "its command is not $expected"
  rm -r "$work"
  say "two builds are equal, and the programs run"
}

image=${IMAGE:-${CARGO_TARGET_DIR:-target}/image/tidegate-$version.oci.tar}
mkdir -p "$(dirname "$image")"
build "$image"
say "$image: $(du -h "$image" | cut -f1), $(sha256sum "$image" | cut -d' ' -f1)"
if [[ ${1:-} == test ]]; then test_image "$image"; fi
