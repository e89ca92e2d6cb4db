"""Redis streams, spoken to by ready-made pieces of its protocol, so that the generator costs little."""

import re
import time

import load

NAME = "Redis streams"
SETTINGS = "appendonly yes, appendfsync always, save ''; XADD pipelined, XREADGROUP COUNT 500, XACK for each message"
HOW = "apt-get install redis-server"
STREAM, GROUP = b"s", b"g"
COUNT = 500


def command(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def start():
    program = load.program("redis-server", HOW)
    port, folder = load.free_port(), load.folder("redis")
    settings = ["--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "",
                "--appendonly", "yes", "--appendfsync", "always"]
    return load.Server([program, *settings], port, folder)


def add(size):
    return command(b"XADD", STREAM, b"*", b"b", load.body(size))


def publish(server, size, count=None):
    line = load.Line(server.port)
    piece = add(size) * load.PIECE

    def acknowledged():
        nonlocal lines
        # Two lines an answer: its length, and the id.
        lines += line.receive().count(b"\r\n")
        whole, lines = divmod(lines, 2)
        return whole

    lines = 0
    done = load.publish(lambda: line.send(piece), acknowledged, count=count)
    line.close()
    return done


def create_group(line, group):
    line.send(command(b"XGROUP", b"CREATE", STREAM, group, b"0", b"MKSTREAM"))
    line.line()


IDS = re.compile(rb"\$\d+\r\n(\d+-\d+)\r\n")


def drain(server, size, total, group=GROUP):
    line = load.Line(server.port)
    create_group(line, group)
    read = command(b"XREADGROUP", b"GROUP", group, b"c", b"COUNT", b"%d" % COUNT, b"STREAMS", STREAM, b">")
    began = time.monotonic()
    taken, acks = 0, 0
    line.send(read)
    while taken < total:
        due = min(COUNT, total - taken)
        # First the answers to the acknowledgements, each `:1`, then the messages, which must be there to their last byte.
        data, skip = bytearray(), acks * len(b":1\r\n")
        while True:
            data += line.receive()
            if len(data) > skip + due * size and data.endswith(b"\r\n"):
                ids = IDS.findall(data, skip)
                if len(ids) == due:
                    break
        taken, acks = taken + due, due
        acknowledgements = b"".join(command(b"XACK", STREAM, group, id) for id in ids)
        line.send(acknowledgements + (read if taken < total else b""))
    answers = 0
    while answers < acks:
        answers += line.receive().count(b"\r\n")
    line.close()
    return total, time.monotonic() - began


def produce_at_rate(port, size):
    line = load.Line(port)
    line.socket.setblocking(False)

    def send(due):
        line.socket.setblocking(True)
        line.send(command(b"XADD", STREAM, b"*", b"b", load.stamped(size, due)))
        line.socket.setblocking(False)
        try:
            while line.socket.recv(1 << 16):
                pass
        except BlockingIOError:
            pass

    load.at_rate(send)
    line.finish()


STAMPS = re.compile(rb"\r\n(\d+-\d+)\r\n\*2\r\n\$1\r\nb\r\n\$\d+\r\n(\d{20})")


def latencies(server, size):
    """From the moment a message was due to its delivery; each is acknowledged."""
    line = load.Line(server.port)
    create_group(line, GROUP)
    with load.beside(produce_at_rate, server.port, size):
        total = int(load.SECONDS * load.RATE)
        read = command(b"XREADGROUP", b"GROUP", GROUP, b"c", b"COUNT", b"500", b"BLOCK", b"0", b"STREAMS", STREAM, b">")
        found = []
        line.send(read)
        data = bytearray()
        while len(found) < total:
            data += line.receive()
            # Whole once the last message that was announced is there to its end.
            stamps = STAMPS.findall(data)
            announced = re.search(rb"\r\n\*(\d+)\r\n\*2\r\n\$\d+\r\n\d+-", data)
            if not announced or len(stamps) < int(announced[1]) or not data.endswith(b"\r\n"):
                continue
            now = time.monotonic()
            found += [now * 1e6 - int(stamp) for _, stamp in stamps]
            line.send(b"".join(command(b"XACK", STREAM, GROUP, id) for id, _ in stamps) + read)
            data.clear()
    line.close()
    return load.percentiles(found)
