"""RabbitMQ quorum queues, spoken to by ready-made frames of AMQP 0-9-1, so that the generator costs little."""

import os
import re
import struct
import time

import load

NAME = "RabbitMQ quorum queue"
SETTINGS = "one node, x-queue-type quorum, persistent messages, publisher confirms; prefetch 2000, acknowledgement of each message"
HOW = "apt-get install rabbitmq-server"
QUEUE = b"q"
PREFETCH = 2000
END = b"\xce"


def start():
    program = load.program("rabbitmq-server", HOW)
    port, folder = load.free_port(), load.folder("rabbitmq")
    with open(os.path.join(folder, "rabbitmq.conf"), "w") as file:
        file.write(f"listeners.tcp.1 = 127.0.0.1:{port}\nlog.console = true\n")
    open(os.path.join(folder, "plugins"), "w").write("[].")
    environment = dict(
        os.environ, HOME=folder, RABBITMQ_NODENAME=f"peer{port}@localhost", RABBITMQ_DIST_PORT=str(load.free_port()),
        RABBITMQ_CONFIG_FILE=os.path.join(folder, "rabbitmq.conf"), RABBITMQ_MNESIA_BASE=os.path.join(folder, "db"),
        RABBITMQ_LOG_BASE=os.path.join(folder, "logs"), RABBITMQ_ENABLED_PLUGINS_FILE=os.path.join(folder, "plugins"),
        RABBITMQ_PID_FILE=os.path.join(folder, "pid"), ERL_EPMD_ADDRESS="127.0.0.1",
        # A daemon of its own, too, which can be ended with it.
        ERL_EPMD_PORT=str(load.free_port()),
    )
    # The script of Debian changes to a user who may not be there; the server itself does not care who it is.
    server = "/usr/lib/rabbitmq/bin/rabbitmq-server"
    server = load.Server([server if os.path.exists(server) else program], port, folder, environment)
    server.afterwards = ["epmd", "-port", environment["ERL_EPMD_PORT"], "-kill"]
    try:
        line, _ = connect(port)
        declare(line)
        line.close()
    except BaseException:
        server.stop()
        raise
    return server


def short(text):
    return struct.pack("B", len(text)) + text


def frame(kind, channel, payload):
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + END


def method(channel, number, payload=b""):
    return frame(1, channel, struct.pack(">HH", *number) + payload)


def wait_for(line, number, data=b""):
    """Reads frames up to the method of this number; what came behind it."""
    while True:
        while len(data) >= 8:
            kind, _, length = struct.unpack_from(">BHI", data)
            if len(data) < 8 + length:
                break
            found, data = data[7:11], data[8 + length:]
            if kind == 1 and struct.unpack(">HH", found) == number:
                return data
        data += line.receive()


def connect(port):
    line = load.Line(port)
    line.send(b"AMQP\x00\x00\x09\x01")
    data = wait_for(line, (10, 10))
    response = b"\x00guest\x00guest"
    line.send(method(0, (10, 11), struct.pack(">I", 0) + short(b"PLAIN") + struct.pack(">I", len(response)) + response + short(b"en_US")))
    data = wait_for(line, (10, 30), data)
    line.send(method(0, (10, 31), struct.pack(">HIH", 2047, 131072, 0)) + method(0, (10, 40), short(b"/") + short(b"") + b"\x00"))
    data = wait_for(line, (10, 41), data)
    line.send(method(1, (20, 10), short(b"")))
    return line, wait_for(line, (20, 11), data)


def declare(line):
    table = short(b"x-queue-type") + b"S" + struct.pack(">I", 6) + b"quorum"
    arguments = struct.pack(">I", len(table)) + table
    # Durable.
    line.send(method(1, (50, 10), struct.pack(">H", 0) + short(QUEUE) + struct.pack("B", 0b10) + arguments))
    wait_for(line, (50, 11))


def message(body):
    head = struct.pack(">HHQH", 60, 0, len(body), 0x1000) + b"\x02"  # persistent
    return (method(1, (60, 40), struct.pack(">H", 0) + short(b"") + short(QUEUE) + b"\x00")
            + frame(2, 1, head) + frame(3, 1, body))


class Confirms:
    """Counts what the broker has confirmed."""

    def __init__(self, line):
        self.line, self.data, self.last = line, b"", 0
        line.send(method(1, (85, 10), b"\x00"))
        self.data = wait_for(line, (85, 11))
        self.single = 0

    def wait(self):
        self.data += self.line.receive()
        at, before = 0, self.last + self.single
        while len(self.data) - at >= 21:
            number, tag, several = struct.unpack_from(">IQB", self.data, at + 7)
            if number != 60 << 16 | 80:
                raise RuntimeError("the broker refused a message")
            if several:
                # All up to this one; those that were confirmed alone are among them.
                self.last, self.single = max(self.last, tag), 0
            elif tag > self.last:
                self.single += 1
            at += 21
        self.data = self.data[at:]
        return self.last + self.single - before


def publish(server, size, count=None):
    line, _ = connect(server.port)
    confirms = Confirms(line)
    piece = message(load.body(size)) * load.PIECE
    done = load.publish(lambda: line.send(piece), confirms.wait, count=count)
    line.close()
    return done


def consume(line):
    line.send(method(1, (60, 10), struct.pack(">IHB", 0, PREFETCH, 0)))
    data = wait_for(line, (60, 11))
    line.send(method(1, (60, 20), struct.pack(">H", 0) + short(QUEUE) + short(b"c") + b"\x00" + struct.pack(">I", 0)))
    return wait_for(line, (60, 21), data)


# A delivery: the method with its number, the consumer's name, and the tag.
DELIVERIES = re.compile(rb"\x00\x3c\x00\x3c\x01c(.{8})", re.DOTALL)


def acknowledgements(tags):
    return b"".join(b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x50" + tag + b"\x00\xce" for tag in tags)


def drain(server, size, total):
    line, _ = connect(server.port)
    began = time.monotonic()
    rest, taken = consume(line), 0
    while taken < total:
        tags, end = [], 0
        for match in DELIVERIES.finditer(rest):
            tags.append(match[1])
            end = match.end()
        rest, taken = rest[end:][-16:], taken + len(tags)
        line.send(acknowledgements(tags))
        if taken < total:
            rest += line.receive()
    elapsed = time.monotonic() - began
    line.close()
    return taken, elapsed


def produce_at_rate(port, size):
    line, _ = connect(port)

    def send(due):
        line.send(message(load.stamped(size, due)))

    load.at_rate(send)
    line.finish()


STAMPS = re.compile(rb"\x00\x3c\x00\x3c\x01c(.{8}).{0,80}?(\d{20})", re.DOTALL)


def latencies(server, size):
    """From the moment a message was due to its delivery; each is acknowledged."""
    line, _ = connect(server.port)
    rest = consume(line)
    with load.beside(produce_at_rate, server.port, size):
        total, found = int(load.SECONDS * load.RATE), []
        while len(found) < total:
            rest += line.receive()
            now, end, tags = time.monotonic() * 1e6, 0, []
            for match in STAMPS.finditer(rest):
                found.append(now - int(match[2]))
                tags.append(match[1])
                end = match.end()
            rest = rest[end:][-(size + 200):]
            line.send(acknowledgements(tags))
    line.close()
    return load.percentiles(found)
