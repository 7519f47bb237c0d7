"""Network traffic for tests of links. `traffic.py listen` receives all data at port 7000. `traffic.py send ADDRESS SECONDS` sends for this
long; the receiver prints the bits per second that arrived. `traffic.py ping ADDRESS` prints the round-trip time of one byte in seconds.
`traffic.py spin SECONDS` prints the fraction of a core that it received meanwhile."""
import socket
import sys
import time

PORT = 7000


def listen():
    with socket.create_server(("", PORT)) as server:
        while True:
            connection, _ = server.accept()
            with connection:
                received, start_time, last = 0, None, None
                while piece := connection.recv(1 << 20):
                    last = time.monotonic()
                    start_time = start_time or last
                    if piece == b"?":
                        connection.sendall(b"!")
                    received += len(piece)
                if received > 1:
                    print(received * 8 / max(last - start_time, 1e-9), flush=True)


def send(address, seconds):
    with socket.create_connection((address, PORT), timeout=5) as connection:
        piece, end = bytes(65536), time.monotonic() + seconds
        while time.monotonic() < end:
            connection.sendall(piece)


def ping(address):
    with socket.create_connection((address, PORT), timeout=1) as connection:
        times = []
        for _ in range(20):
            start_time = time.monotonic()
            connection.sendall(b"?")
            connection.recv(1)
            times.append(time.monotonic() - start_time)
        print(sorted(times)[10])


def spin(seconds):
    start_time, used = time.monotonic(), time.process_time()
    while time.monotonic() - start_time < seconds:
        pass
    print((time.process_time() - used) / (time.monotonic() - start_time))


{"listen": listen, "send": lambda: send(sys.argv[2], float(sys.argv[3])), "ping": lambda: ping(sys.argv[2]), "spin": lambda: spin(float(sys.argv[2]))}[sys.argv[1]]()
