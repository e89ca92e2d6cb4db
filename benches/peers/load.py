"""What the peers' load generators share: works, a socket that is read ahead, servers as processes, and what they cost."""

import contextlib
import functools
import os
import random
import shutil
import signal
import socket
import string
import subprocess
import tempfile
import time

# How long a work is measured, and how much a drain takes.
SECONDS = float(os.environ.get("PEERS_SECONDS", "5"))
DRAINED = int(os.environ.get("PEERS_DRAINED", "300000"))
# Messages that are under way at a time, and those that are sent in one piece.
IN_FLIGHT = 1000
PIECE = 50
RATE = 5000
PATIENCE = 30


@functools.cache
def body(size):
    """A body that does not compress well and holds nothing that any protocol would take for its own."""
    return "".join(random.Random(size).choices(string.ascii_letters + string.digits, k=size)).encode()


def stamped(size, at):
    """A body that begins with a moment, in microseconds of the machine's monotonic clock."""
    return b"%020d" % int(at * 1e6) + body(size - 20)


class NotInstalled(Exception):
    """The peer is not there; its words say how to get it."""


def program(name, how):
    """Where a program is; an error that says how to install it if it is nowhere."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/lib/rabbitmq/bin")
    if not found:
        raise NotInstalled(f"{name} is not installed ({how})")
    return found


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Server:
    """A server of its own on a port of its own, with its data in a folder that goes with it."""

    def __init__(self, command, port, folder, environment=None):
        self.port, self.folder = port, folder
        # A command that ends what the server left behind.
        self.afterwards = None
        self.log = open(os.path.join(folder, "log"), "wb")
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True,
            cwd=folder, env=environment,
        )
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    with open(os.path.join(folder, "log"), errors="replace") as log:
                        words = log.read()[-2000:]
                    self.stop()
                    raise RuntimeError(f"{command[0]} does not serve:\n{words}")
                time.sleep(0.1)

    def processes(self):
        """Its processes: all of its session, since some servers are started by a script."""
        ids = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{entry}/stat") as stat:
                    fields = stat.read().rsplit(") ", 1)[1].split()
            except OSError:
                continue
            if int(fields[3]) == self.process.pid:
                ids.append((int(entry), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
                            int(fields[21]) * os.sysconf("SC_PAGE_SIZE")))
        return ids

    def cpu_seconds(self):
        return sum(cpu for _, cpu, _ in self.processes())

    def rss_bytes(self):
        return sum(rss for _, _, rss in self.processes())

    def stop(self):
        # Only what was started here: the session is the server's own.
        for pid, _, _ in self.processes():
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                pass
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            for pid, _, _ in self.processes():
                os.kill(pid, signal.SIGKILL)
            self.process.wait()
        if self.afterwards:
            subprocess.run(self.afterwards, stdout=self.log, stderr=self.log, check=False)
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def folder(name):
    return tempfile.mkdtemp(prefix=f"stentor-peer-{name}-")


class Line:
    """A connection."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(PATIENCE)

    def send(self, data):
        self.socket.sendall(data)

    def receive(self):
        data = self.socket.recv(1 << 20)
        if not data:
            raise RuntimeError("the server closed the connection")
        return data

    def line(self):
        """One line, without reading further."""
        data = b""
        while not data.endswith(b"\r\n"):
            data += self.socket.recv(1)
        return data

    def finish(self):
        """Lets the server take all that was sent: closing with answers unread would throw away what it has not read."""
        self.socket.settimeout(PATIENCE)
        self.socket.shutdown(socket.SHUT_WR)
        while self.socket.recv(1 << 20):
            pass
        self.socket.close()

    def close(self):
        self.socket.close()


def publish(send_piece, acknowledged, seconds=SECONDS, count=None):
    """Keeps IN_FLIGHT messages under way, for so long or so many of them; messages and the time they took.

    `send_piece` sends PIECE messages; `acknowledged` waits and says how many more have been acknowledged."""
    began = time.monotonic()
    sent = done = 0
    while (sent < count) if count else (time.monotonic() - began < seconds):
        while sent - done > IN_FLIGHT - PIECE:
            done += acknowledged()
        send_piece()
        sent += PIECE
    while done < sent:
        done += acknowledged()
    return done, time.monotonic() - began


def at_rate(send, seconds=SECONDS, rate=RATE):
    """Calls `send` with the moment it was due, `rate` times a second, whatever it takes."""
    began = time.monotonic() + 0.2
    for number in range(int(seconds * rate)):
        due = began + number / rate
        wait = due - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        send(due)


@contextlib.contextmanager
def beside(produce, *arguments):
    """Runs a producer in a process of its own, and waits for its end at the end of the block."""
    producer = os.fork()
    if producer == 0:
        try:
            produce(*arguments)
        finally:
            os._exit(0)
    yield
    os.waitpid(producer, 0)


def percentiles(latencies):
    """p50, p99 and p99.9, in microseconds."""
    ordered = sorted(latencies)
    return {name: ordered[min(len(ordered) - 1, int(len(ordered) * share))]
            for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))}
