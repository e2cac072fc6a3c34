#!/bin/bash
# Builds the Debian packages `tidegate` and `kubectl-tidegate`, with their debug symbols in packages of their own, into
# target/deb. Called by `make deb`. The same commit, toolchain and directory result in the same packages. VERSION=...
# replaces the version, which is otherwise that of Cargo.toml with the time and the hash of the commit.
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo=${CARGO:-cargo}
target=${CARGO_TARGET_DIR:-$PWD/target}
deploy/scripts/setup.sh deb

# `cargo auditable` writes the list of crates into each program; the SBOM comes from that list.
tools=$target/tools
for tool in cargo-auditable@0.7.7 auditable2cdx@0.1.0; do
  [[ -x $tools/bin/${tool%@*} ]] || (cd / && "$cargo" install -q --locked --root "$tools" "$tool")
done
export PATH=$tools/bin:$PATH

TIDEGATE_AUDITABLE=yes deploy/scripts/release.sh >/dev/null

# For the times in the packages.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
release=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
commit=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d.%H%M%S).$(git rev-parse --short=8 HEAD)
version=${VERSION:-$release+git$commit}

# What dpkg-buildpackage needs in one directory: debian/, and the files that the packages install.
stage=$target/deb/stage
rm -rf "$target/deb"
mkdir -p "$stage"/{bin,etc/sysctl.d}
cp -r deploy/debian "$stage/debian"
cp deploy/systemd/tidegate.service "$stage/debian/tidegate.service"
cp deploy/systemd/vfio.conf "$stage/debian/examples/"
cp deploy/debian/tidegate.sysctl "$stage/etc/sysctl.d/60-tidegate.conf"
cat >"$stage/debian/changelog" <<END
tidegate ($version) unstable; urgency=medium

  * See CHANGELOG.md of this commit.

 -- $(sed -n 's/^Maintainer: //p' deploy/debian/control)  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
END
for program in tidegate kubectl-tidegate; do
  built=$target/release/$program share=$stage/share/$program
  cp "$built" "$stage/bin/"
  mkdir -p "$share"/{man/man1,bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d,doc/"$program"}
  "$built" man --dir "$share/man/man1"
  "$built" completion bash >"$share/bash-completion/completions/$program"
  "$built" completion zsh >"$share/zsh/vendor-completions/_$program"
  "$built" completion fish >"$share/fish/vendor_completions.d/$program.fish"
  auditable2cdx "$built" >"$share/doc/$program/sbom.cdx.json"
  deploy/scripts/crate-licences.py "$program" >"$share/doc/$program/third-party.txt"
done
if ! (cd "$stage" && dpkg-buildpackage --build=binary --no-sign) >"$target/deb/log" 2>&1; then
  tail -n 40 "$target/deb/log" >&2
  exit 1
fi
rm -rf "$stage"
ls "$target"/deb/*.deb
