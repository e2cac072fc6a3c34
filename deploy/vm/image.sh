#!/bin/bash
# Builds the kernel and the initramfs of the virtual machine of `make vm-test` from Debian packages. They are installed
# (busybox-static, kmod, cpio) or only downloaded and unpacked (the kernel), so the boot of the host does not change.
# Usage: image.sh DIRECTORY. Writes DIRECTORY/vmlinuz and DIRECTORY/initramfs. An existing kernel is not downloaded
# again.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
into=$1
mkdir -p "$into"
into=$(cd "$into" && pwd)

die() { printf 'vm-test: %s\n' "$*" >&2; exit 1; }

# The modules that the machine loads, with their dependencies.
modules=(9p 9pnet_virtio virtio_pci e1000e vmxnet3 virtio_net vfio-pci vfio_iommu_type1 tun)

fetch_kernel() {
  local package
  package=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '$1 == "Depends:" && $2 ~ /^linux-image-/ {print $2; exit}')
  [[ -n $package ]] || die "apt-cache knows no linux-image-amd64; run apt-get update"
  printf 'vm-test: fetching %s\n' "$package"
  rm -rf "$into/kernel" "$into/kernel.part"
  mkdir -p "$into/kernel.part/deb"
  (cd "$into/kernel.part/deb" && apt-get -q download "$package" >/dev/null 2>&1) || die "apt-get cannot download $package"
  dpkg-deb -x "$into"/kernel.part/deb/*.deb "$into/kernel.part"
  rm -rf "$into/kernel.part/deb"
  mv "$into/kernel.part" "$into/kernel"
}

compgen -G "$into/kernel/boot/vmlinuz-*" >/dev/null || fetch_kernel
vmlinuz=$(compgen -G "$into/kernel/boot/vmlinuz-*")
version=${vmlinuz##*/vmlinuz-}
cp "$vmlinuz" "$into/vmlinuz"

root=$into/root
rm -rf "$root"
mkdir -p "$root"/{bb,dev,proc,sys,usr,etc,run,tmp,lib/modules}
cp "$here/init" "$root/init"
chmod 755 "$root/init"
depmod -b "$into/kernel" "$version"
for module in "${modules[@]}"; do
  modprobe -d "$into/kernel" -S "$version" --show-depends "$module" | awk '$1 == "insmod" {print $2}'
done | sort -u | while read -r file; do
  install -D -m 644 "$file" "$root/lib/modules/$version/${file#"$into/kernel/lib/modules/$version/"}"
done
cp "$into/kernel/lib/modules/$version"/modules.{builtin,order} "$root/lib/modules/$version/"
depmod -b "$root" "$version"
# The libraries are the host's below /usr. /lib is a directory here, because it contains the modules.
mkdir -p "$root/bin"
cp "$(command -v busybox)" "$root/bin/busybox"
for directory in lib64 sbin; do ln -s "usr/$directory" "$root/$directory"; done
for entry in /usr/lib/*-linux-gnu; do ln -s "/usr/lib/${entry##*/}" "$root/lib/${entry##*/}"; done
(cd "$root" && find . -print0 | cpio --null --create --format=newc --quiet) >"$into/initramfs"
rm -rf "$root"
