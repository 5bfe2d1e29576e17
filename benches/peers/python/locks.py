"""The lock of redis-py, for scripts/peers: `locks.py redis-py HOST:PORT`.

Each line of the input is answered with a line; ../README.md says which there are.
"""

import sys
import threading
import time

import redis

# Longer than any hold here, so that no lock expires in a run.
LEASE = 30
# With its default of 100 ms it would mostly sleep.
PAUSE = 0.001


class Locks:
    def __init__(self, address):
        host, port = address.split(":")
        self.client = redis.Redis(host=host, port=int(port))
        self.held = None

    def lock(self, name):
        return self.client.lock(name, timeout=LEASE, sleep=PAUSE)

    def answer(self, line):
        verb, *words = line.split()
        if verb == "open":
            return "ready"
        if verb == "race":
            name, workers, hold_us, run_ms, names = words
            return self.race(name, int(workers), int(hold_us) / 1e6, int(run_ms) / 1e3, names == "own")
        if verb == "hold":
            self.held = self.lock(words[0])
            self.held.acquire()
            return "held"
        if verb == "free":
            self.held.release()
            return "freed"
        if verb == "wait":
            for _ in range(int(words[1])):
                threading.Thread(target=self.wait, args=[words[0]], daemon=True).start()
            return "waiting"
        return "unknown: " + line

    def wait(self, name):
        self.lock(name).acquire()
        print("got", flush=True)

    def race(self, name, workers, hold, run, own):
        """All workers take the lock as often as they can until the time is up."""
        until = time.monotonic() + run
        turns, longest, pairs = [0] * workers, [0] * workers, []

        def work(i):
            mine = f"{name}{i}" if own else name
            while time.monotonic() < until:
                lock = self.lock(mine)
                asked = time.monotonic_ns()
                lock.acquire()
                waited = time.monotonic_ns() - asked
                longest[i] = max(longest[i], waited)
                # A wait that ends after the time is up is no turn, but it is a wait.
                turns[i] += time.monotonic() < until
                if hold:
                    time.sleep(hold)
                given = time.monotonic_ns()
                lock.release()
                pairs.append(waited + time.monotonic_ns() - given)

        threads = [threading.Thread(target=work, args=[i]) for i in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        pairs.sort()
        middle, late = pairs[(len(pairs) - 1) // 2], pairs[int((len(pairs) - 1) * 0.99)]
        return " ".join(str(number) for number in [max(longest), middle, late, *turns])


def main():
    locks = Locks(sys.argv[2])
    for line in sys.stdin:
        print(locks.answer(line), flush=True)


main()
