import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * The locks of Redisson, for scripts/peers: {@code Locks redisson|redisson-fair|redisson-semaphore|redisson-rw-lock
 * ADDRESS}. Each line of the input is answered with a line; ../README.md says which there are. The lease is the default:
 * 30 s, renewed by the watchdog; a permit, which has neither, gets 30 s.
 */
final class Locks {
    private static final int PERMITS = 4;
    /** Of a read-write lock one worker in so many writes. */
    private static final int WRITES = 4;

    private final RedissonClient client;
    private final String peer;
    // A lock belongs to a thread, so each worker is one.
    private final ExecutorService workers = Executors.newCachedThreadPool();
    private final ExecutorService holder = Executors.newSingleThreadExecutor();
    private Held held;

    private Locks(RedissonClient client, String peer) {
        this.client = client;
        this.peer = peer;
    }

    public static void main(String[] arguments) throws Exception {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://" + arguments[1]).setConnectionPoolSize(64);
        Locks locks = new Locks(Redisson.create(config), arguments[0]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(locks.answer(line.split(" ")));
        }
        System.exit(0);
    }

    private String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "open":
                return "ready";
            case "race":
                long hold = Long.parseLong(words[3]);
                return race(words[1], Integer.parseInt(words[2]), hold, Long.parseLong(words[4]), words[5].equals("own"));
            case "hold":
                holder.submit(() -> held = take(words[1], 0)).get();
                return "held";
            case "free":
                holder.submit(() -> held.free()).get();
                return "freed";
            case "wait":
                for (int i = 0; i < Integer.parseInt(words[2]); i++) {
                    workers.submit(() -> {
                        take(words[1], 0);
                        System.out.println("got");
                        // Its thread has the lock until the process is killed.
                        Thread.sleep(Long.MAX_VALUE);
                        return null;
                    });
                }
                return "waiting";
            default:
                return "unknown";
        }
    }

    private interface Held {
        void free();
    }

    private Held take(String name, int worker) throws InterruptedException {
        RLock lock;
        switch (peer) {
            case "redisson-semaphore":
                RPermitExpirableSemaphore semaphore = client.getPermitExpirableSemaphore(name);
                String permit = semaphore.acquire(30, TimeUnit.SECONDS);
                return () -> semaphore.release(permit);
            case "redisson-rw-lock":
                lock = worker % WRITES == 0 ? client.getReadWriteLock(name).writeLock() : client.getReadWriteLock(name).readLock();
                break;
            case "redisson-fair":
                lock = client.getFairLock(name);
                break;
            default:
                lock = client.getLock(name);
        }
        lock.lock();
        return lock::unlock;
    }

    /** What one worker has seen, in nanoseconds. */
    private static final class Seen {
        long turns;
        long longest;
        long[] pairs = new long[1024];
        int filled;

        void add(long pair) {
            if (filled == pairs.length) {
                pairs = Arrays.copyOf(pairs, 2 * filled);
            }
            pairs[filled++] = pair;
        }
    }

    /** All workers take the lock as often as they can until the time is up. */
    private String race(String name, int count, long holdUs, long runMs, boolean own) throws Exception {
        if (peer.equals("redisson-semaphore")) {
            client.getPermitExpirableSemaphore(name).trySetPermits(PERMITS);
        }
        long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(runMs);
        List<Future<Seen>> running = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            String mine = own ? name + i : name;
            int number = i;
            running.add(workers.submit(() -> worker(mine, number, holdUs, until)));
        }
        StringBuilder turns = new StringBuilder();
        long longest = 0;
        long[] pairs = new long[0];
        for (Future<Seen> worker : running) {
            Seen seen = worker.get();
            turns.append(' ').append(seen.turns);
            longest = Math.max(longest, seen.longest);
            int filled = pairs.length;
            pairs = Arrays.copyOf(pairs, filled + seen.filled);
            System.arraycopy(seen.pairs, 0, pairs, filled, seen.filled);
        }
        Arrays.sort(pairs);
        return longest + " " + pairs[(pairs.length - 1) / 2] + " " + pairs[(int) ((pairs.length - 1) * 0.99)] + turns;
    }

    private Seen worker(String name, int number, long holdUs, long until) throws Exception {
        Seen seen = new Seen();
        while (System.nanoTime() < until) {
            long asked = System.nanoTime();
            Held mine = take(name, number);
            long waited = System.nanoTime() - asked;
            seen.longest = Math.max(seen.longest, waited);
            // A wait that ends after the time is up is no turn, but it is a wait.
            if (System.nanoTime() < until) {
                seen.turns++;
            }
            if (holdUs > 0) {
                TimeUnit.MICROSECONDS.sleep(holdUs);
            }
            long given = System.nanoTime();
            mine.free();
            seen.add(waited + System.nanoTime() - given);
        }
        return seen;
    }
}
