"""A program for tests of links: `talk.py listen` receives whatever comes at port 7000; `talk.py send ADDRESS SECONDS` sends for so long and
prints the bits a second that arrived, as the receiver counted them; `talk.py ask ADDRESS` prints seconds of a byte there and back.
`talk.py spin SECONDS` prints how much of a core it had meanwhile."""
import socket
import sys
import time

PORT = 7000


def listen():
    with socket.create_server(("", PORT)) as server:
        while True:
            connection, _ = server.accept()
            with connection:
                received, began, last = 0, None, None
                while piece := connection.recv(1 << 20):
                    last = time.monotonic()
                    began = began or last
                    if piece == b"?":
                        connection.sendall(b"!")
                    received += len(piece)
                if received > 1:
                    print(received * 8 / max(last - began, 1e-9), flush=True)


def send(address, seconds):
    with socket.create_connection((address, PORT), timeout=5) as connection:
        piece, end = bytes(65536), time.monotonic() + seconds
        while time.monotonic() < end:
            connection.sendall(piece)


def ask(address):
    with socket.create_connection((address, PORT), timeout=1) as connection:
        times = []
        for _ in range(20):
            began = time.monotonic()
            connection.sendall(b"?")
            connection.recv(1)
            times.append(time.monotonic() - began)
        print(sorted(times)[10])


def spin(seconds):
    began, used = time.monotonic(), time.process_time()
    while time.monotonic() - began < seconds:
        pass
    print((time.process_time() - used) / (time.monotonic() - began))


{"listen": listen, "send": lambda: send(sys.argv[2], float(sys.argv[3])), "ask": lambda: ask(sys.argv[2]), "spin": lambda: spin(float(sys.argv[2]))}[sys.argv[1]]()
