#!/usr/bin/env python3
"""Other brokers on the same work as `stentor bench`, where they are installed, and the ratios. See README.md.

    benches/peers/peers.py [--stentor FILE] [--runs N] [PEER]…        PEER: redis, nats, rabbitmq; all unless named
"""

import argparse
import json
import os
import subprocess
import sys

import load
import nats_jetstream
import rabbitmq_quorum
import redis_streams

PEERS = {"redis": redis_streams, "nats": nats_jetstream, "rabbitmq": rabbitmq_quorum}
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# The work, its size, and the command of ours. All of it durable before the acknowledgement, and as many under way.
UNDER_WAY = ["--in-flight", str(load.IN_FLIGHT), "--duration", f"{load.SECONDS:.0f}s"]
WORKS = [
    ("publish", 1024, ["publish", "--size", "1024", *UNDER_WAY]),
    ("publish", 100, ["publish", "--size", "100", *UNDER_WAY]),
    ("drain", 1024, ["consume", "--size", "1024", "--count", str(load.DRAINED)]),
    ("latency", 1024, ["end-to-end", "--size", "1024", "--rate", str(load.RATE), "--duration", f"{load.SECONDS:.0f}s"]),
]


def of_peer(peer, work, size):
    """One run: a figure, or percentiles; processor time a million messages; memory."""
    server = peer.start()
    try:
        if work == "drain":
            peer.publish(server, size, count=load.DRAINED)
        before = server.cpu_seconds()
        if work == "latency":
            found, messages = peer.latencies(server, size), load.SECONDS * load.RATE
        else:
            messages, seconds = (peer.publish(server, size) if work == "publish"
                                 else peer.drain(server, size, load.DRAINED))
            found = messages / seconds
        return found, (server.cpu_seconds() - before) * 1e6 / messages, server.rss_bytes()
    finally:
        server.stop()


def of_stentor(stentor, arguments):
    lines = subprocess.run([stentor, "--json", "bench", *arguments], check=True, capture_output=True, text=True)
    report = json.loads(lines.stdout.splitlines()[0])
    found = report["latency_us"] if arguments[0] == "end-to-end" else report["messages_per_second"]
    return found, report["broker_cpu_seconds_per_million"], report["broker_rss_bytes"]


def median(runs):
    """The run in the middle, by its figure (or by its p99)."""
    ordered = sorted(runs, key=lambda run: run[0]["p99"] if isinstance(run[0], dict) else run[0])
    return ordered[len(ordered) // 2]


def show(found):
    if isinstance(found, dict):
        return " / ".join(f"{found[name]:,.0f}" for name in ("p50", "p99", "p999"))
    return f"{found:,.0f}"


def ratio(ours, theirs):
    """How many times as good ours is."""
    if isinstance(ours, dict):
        return " / ".join(f"{theirs[name] / max(ours[name], 1):.2f}" for name in ("p50", "p99", "p999"))
    return f"{ours / theirs:.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", metavar="PEER", help="redis, nats, rabbitmq")
    parser.add_argument("--stentor", default=os.path.join(ROOT, "target/release/stentor"))
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    wanted = arguments.peers or list(PEERS)
    for name in wanted:
        if name not in PEERS:
            parser.error(f"{name} is none of {', '.join(PEERS)}")
    if not os.path.exists(arguments.stentor):
        parser.error(f"there is no {arguments.stentor}: cargo build --release, or name it with --stentor")

    there = []
    for name in wanted:
        try:
            PEERS[name].start().stop()
            there.append(name)
        except load.NotInstalled as absent:
            print(f"left out: {PEERS[name].NAME}: {absent}", file=sys.stderr)
    if not there:
        print("no peer is installed", file=sys.stderr)
        sys.exit(1)

    print("stentor: lsm topic, synced before each acknowledgement, over QUIC with TLS; defaults")
    for name in there:
        print(f"{PEERS[name].NAME}: {PEERS[name].SETTINGS}")
    print(f"\nmedian of {arguments.runs} interleaved runs; {load.IN_FLIGHT} messages under way; "
          f"clients and server share {os.cpu_count()} cores\n")
    print("| work | broker | messages/s, or µs p50 / p99 / p99.9 | stentor is so many times as good | CPU s a million | MiB |")
    print("|---|---|--:|--:|--:|--:|")
    for work, size, command in WORKS:
        runs = {name: [] for name in ["stentor", *there]}
        for _ in range(arguments.runs):
            runs["stentor"].append(of_stentor(arguments.stentor, command))
            for name in there:
                runs[name].append(of_peer(PEERS[name], work, size))
        what = f"{work} {size} B" + (f" at {load.RATE:,}/s" if work == "latency" else "")
        ours = median(runs["stentor"])
        for name in runs:
            found, cpu, rss = median(runs[name])
            label = "stentor" if name == "stentor" else PEERS[name].NAME
            against = "" if name == "stentor" else ratio(ours[0], found)
            print(f"| {what} | {label} | {show(found)} | {against} | {cpu:.2f} | {rss / (1 << 20):.0f} |", flush=True)


if __name__ == "__main__":
    main()
