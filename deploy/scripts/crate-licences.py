#!/usr/bin/env python3
"""Prints the crates that a program contains, with the texts of their licences. Called by deb.sh.

Usage: crate-licences.py PACKAGE, in a directory of the workspace, after a build (nothing is downloaded). A crate that has
no licence file is listed with its licence expression; `make deny` checks these."""

import json
import pathlib
import re
import subprocess
import sys

host = re.search(r"^host: (.*)$", subprocess.check_output(["rustc", "-vV"], text=True), re.M)[1]
metadata = json.loads(
    subprocess.check_output(
        ["cargo", "metadata", "--format-version=1", "--locked", "--offline", "--filter-platform", host]
    )
)
packages = {package["id"]: package for package in metadata["packages"]}
dependencies = {
    node["id"]: [
        one["pkg"] for one in node["deps"] if any(kind["kind"] is None for kind in one["dep_kinds"])
    ]
    for node in metadata["resolve"]["nodes"]
}

# Everything that the program links: neither tests nor build scripts.
linked = set()
pending = [id for id, package in packages.items() if package["name"] == sys.argv[1]]
while pending:
    id = pending.pop()
    if id not in linked:
        linked.add(id)
        pending += dependencies[id]

texts = {}
crates = sorted((packages[id] for id in linked if packages[id]["source"]), key=lambda p: (p["name"], p["version"]))
print("The Rust crates in this program, with their licences and authors:\n")
for crate in crates:
    name = f'{crate["name"]} {crate["version"]}'
    print(f'{name}: {crate["license"]}. {", ".join(crate["authors"])}'.strip())
    for file in sorted(pathlib.Path(crate["manifest_path"]).parent.iterdir()):
        if re.match(r"(licen[cs]e|copying|copyright|notice|unlicense)", file.name, re.I) and file.is_file():
            texts.setdefault(file.read_text(errors="replace").strip(), []).append(f"{name} ({file.name})")
for text, users in texts.items():
    print("\n" + "-" * 80 + "\n" + "\n".join(users) + "\n\n" + text)
