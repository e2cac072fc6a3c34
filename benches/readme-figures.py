#!/usr/bin/env python3
"""Writes the figures of the README from a file of results (`RESULTS=NAME make perf` prints its path).

benches/readme-figures.py RESULTS.json   writes the table between the marks, with the name of the file
"""
import json
import pathlib
import re
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BEGIN = "<!-- begin: written by benches/readme-figures.py from benches/results/{}.md -->\n"
END = "<!-- end of figures -->"
COLUMNS = (("1,000 flows", 1_000), ("100,000", 100_000), ("1,000,000", 1_000_000), ("a new flow for each packet", 0))


def name(scenario):
    """The row of a scenario, or None for those that the table leaves out."""
    if scenario["frame-bytes"] != [60] or scenario["family"] != "v4" or scenario["connections"]:
        return None
    if (scenario["services"], scenario["backends"]) != (1_000, 10):
        return None
    who = {"testpmd": "`testpmd`, which only passes frames on", "kernel": "the kernel with kube-proxy's nftables rules"}
    who = who.get(scenario["forwarder"], f"`{scenario['mode']}`")
    replies = ", replies" if scenario["direction"] == "replies" else ""
    on_change = ", `flowTracking: on-change`" if scenario.get("flow-tracking") == "on-change" else ""
    return who + on_change + replies, scenario["wire"]


def nanoseconds(row):
    """The median of the rounds, with minimum and maximum."""
    rounds = [1e9 / one["found"]["overload_pps"] for one in row["rounds"]]
    if not rounds:
        return "failed"
    most = "at most " if all(one["found"].get("is_limit_of_generator") for one in row["rounds"]) else ""
    if len(rounds) == 1:
        return f"{most}{rounds[0]:,.0f}"
    return f"{most}{statistics.median(rounds):,.0f} ({min(rounds):,.0f}-{max(rounds):,.0f})"


def table(path):
    results = json.loads(pathlib.Path(path).read_text())
    cells = {}
    for row in results["rows"]:
        key = name(row["scenario"])
        if key:
            cells.setdefault(key, {})[row["scenario"]["flows"]] = nanoseconds(row)
    machine = results["machine"]
    lines = [
        "Nanoseconds per frame under overload: the median of the rounds (minimum-maximum), including receive, transmit and the",
        "wire. \"At most\" means that everything that the generator sent was forwarded.",
        "",
        f"{machine['cpu']}, {machine['cpus']} virtual CPUs, commit {machine['commit']}, one worker, 60-byte frames, UDP over IPv4,",
        "1,000 Services of 10 backends.",
    ]
    wires = {
        "memif": "Over shared-memory rings (`memif`)",
        "veth": "Over kernel links (`veth`), which cost more than the gateway",
    }
    for wire, title in wires.items():
        rows = {who: flows for (who, of), flows in cells.items() if of == wire}
        used = [(head, flows) for head, flows in COLUMNS if any(flows in row for row in rows.values())]
        if not rows:
            continue
        lines += ["", f"| {title} | " + " | ".join(head for head, _ in used) + " |", "|---|" + "---|" * len(used)]
        lines += [f"| {who} | " + " | ".join(row.get(flows, "") for _, flows in used) + " |" for who, row in rows.items()]
    return BEGIN.format(pathlib.Path(path).stem) + "\n".join(lines) + "\n" + END


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    text = README.read_text()
    found = re.search(re.escape(BEGIN).replace(re.escape("{}"), r"(\S+)") + r".*?" + re.escape(END), text, re.S)
    if not found:
        sys.exit(f"{README}: the marks of the figures are missing")
    README.write_text(text[: found.start()] + table(sys.argv[1]) + text[found.end() :])


main()
