#!/bin/bash
# The short form of the performance lab, a part of `make test`: each kind of forwarder over each wire, from the scenario
# files to the HTML page. It compares no times.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bench=${CARGO_TARGET_DIR:-target}/${PROFILE:-debug}/tidegate-bench
for wire in memif veth; do
  "$bench" run "short-$wire" --no-hugepages --out "$work/$wire.json" >"$work/$wire.txt"
  cat "$work/$wire.txt"
done
"$bench" restart short-restart --no-hugepages --rate 2000
"$bench" report "$work"/{memif,veth}.json --out "$work/report.html"
"$bench" compare "$work/memif.json" "$work/memif.json" >"$work/compare.txt"
python3 - "$work" <<'PY'
import json
import sys

work = sys.argv[1]
page = open(f"{work}/report.html").read()
for wire, rows in ("memif", ["tidegate nat", "testpmd"]), ("veth", ["tidegate nat", "kernel nftables"]):
    results = json.load(open(f"{work}/{wire}.json"))
    assert len(results["rows"]) == len(rows), results["rows"]
    for row, name in zip(results["rows"], rows):
        [measured] = row["rounds"]
        first, *_ = measured["found"]["trials"]
        assert first["offered"] >= first["received"] > 0, f"{name}: no frame passed: {first}"
        assert measured["found"]["throughput_pps"] > 0, f"{name}: {measured['found']}"
        assert [one["load"] for one in measured["latency"]] == ["half", "low"], name
        assert all(one["frames"] > 0 and one["p50_us"] > 0 for one in measured["latency"]), name
        assert f"{name}, {wire} ({wire})" in page, f"{name} is not in the page"
assert "noise" in open(f"{work}/compare.txt").read()
print("perf lab: 4 rows over 2 wires")
PY
