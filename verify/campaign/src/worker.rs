//! A client process. It uses the public API alone, and writes down what it asked, what it got, and until when it may rely on it.

use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fairlock::{LockClient, LockError, LockGuard, Loss, UnlockError, Unlocked, owner};
use fastrand::Rng;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::history::{History, now};
use crate::settings::Settings;

/// How often a long holder looks at its deadline.
const LOOK: Duration = Duration::from_millis(50);

struct Worker {
    client: LockClient,
    history: History,
    settings: Settings,
    next_id: AtomicU64,
    /// Becomes true when the driver closes this process's standard input.
    stop: watch::Receiver<bool>,
}

/// One caller: its random choices, and its connection to the register.
struct Caller {
    worker: Arc<Worker>,
    rng: Rng,
    register: BufReader<UnixStream>,
}

pub fn work(settings: Settings) {
    let runtime = runtime(&settings.runtime);
    // `split`: the client's own runtime is another one than that of its callers.
    let home = (settings.runtime == "split").then(|| self::runtime("multi"));
    let handle = home.as_ref().map(|home| home.handle().clone());
    runtime.block_on(async {
        let mut builder = LockClient::builder()
            .lease(settings.lease)
            .operation_timeout(settings.op)
            .poll_interval(settings.poll)
            .waiter_ttl(waiter_ttl(&settings))
            .grant_ttl(grant_ttl(&settings))
            .label(&settings.id)
            .retry_on_initial_connect();
        if !settings.strict.is_zero() {
            builder = builder.strict_restart(settings.strict);
        }
        if let Some(handle) = handle {
            builder = builder.runtime(handle);
        }
        let connect = async || match &settings.urls[..] {
            [url] => builder.clone().connect(url.as_str()).await,
            urls => builder.clone().connect(urls.to_vec()).await,
        };
        // A server whose user has too few rights at the moment is refused.
        let client = loop {
            match connect().await {
                Ok(client) => break client,
                Err(error) => eprintln!("{error}"),
            }
            sleep(Duration::from_millis(200)).await;
        };
        serve(client, settings).await;
    });
}

fn runtime(kind: &str) -> Runtime {
    let mut builder = if kind == "multi" { Builder::new_multi_thread() } else { Builder::new_current_thread() };
    builder.worker_threads(2).enable_all().build().expect("there are threads")
}

fn waiter_ttl(settings: &Settings) -> Duration {
    3 * settings.poll
}

fn grant_ttl(settings: &Settings) -> Duration {
    settings.poll * 3 / 2
}

async fn serve(client: LockClient, settings: Settings) {
    let history = History::open(Path::new(&settings.history), &settings.id);
    let ms = |time: Duration| time.as_millis();
    history.line(
        "client",
        format_args!(
            r#""host":"{}","lease":{},"op":{},"poll":{},"wttl":{},"gttl":{},"runtime":"{}""#,
            settings.host,
            ms(settings.lease),
            ms(settings.op),
            ms(settings.poll),
            ms(waiter_ttl(&settings)),
            ms(grant_ttl(&settings)),
            settings.runtime
        ),
    );
    let (stopped, stop) = watch::channel(false);
    let worker = Arc::new(Worker { client, history, settings, next_id: AtomicU64::new(1), stop });
    if worker.settings.sweep {
        sweep(&worker).await;
    } else {
        let tasks = start(&worker).await;
        let _ = tokio::task::spawn_blocking(|| std::io::stdin().lines().count()).await;
        stopped.send_replace(true);
        tasks.join_all().await;
    }
    worker.history.line("closing", format_args!(r#""op":{}"#, ms(worker.settings.op)));
    let why = worker.client.close().await.map_or_else(|error| error.to_string(), |()| "ok".to_owned());
    worker.history.line("closed", format_args!(r#""why":{why:?}"#));
}

async fn start(worker: &Arc<Worker>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let settings = &worker.settings;
    let mut rng = Rng::with_seed(settings.seed);
    let mut callers = Vec::new();
    for _ in 0..settings.tasks {
        callers.push(Caller::new(worker, &mut rng).await.any_of(settings.work_names()));
    }
    for name in settings.line_names() {
        for _ in 0..2 {
            callers.push(Caller::new(worker, &mut rng).await.in_line(name.clone()));
        }
    }
    for name in settings.own_names(settings.number).into_iter().chain(settings.own_names(settings.number + 1)) {
        callers.push(Caller::new(worker, &mut rng).await.for_long(name));
    }
    if !settings.force.is_zero() {
        callers.push(Caller::new(worker, &mut rng).await.by_force());
    }
    callers.into_iter().for_each(|caller| drop(tasks.spawn(caller)));
    tasks
}

/// Each name once: a queue in which only the dead are left is served, and its places go.
async fn sweep(worker: &Arc<Worker>) {
    let mut rng = Rng::with_seed(worker.settings.seed);
    let mut caller = Caller::new(worker, &mut rng).await;
    for name in worker.settings.all_names() {
        let id = worker.ask(&name, "timeout", Some(Duration::from_secs(40)));
        let asked = worker.client.lock(&name).lock_timeout(Duration::from_secs(40)).await;
        if let Some(guard) = worker.told(id, asked.map(Some), None) {
            caller.section(id, guard, Duration::ZERO).await;
        }
    }
}

type Running = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

impl Worker {
    fn has_stopped(&self) -> bool {
        *self.stop.borrow()
    }

    async fn stopped(&self) {
        let _ = self.stop.clone().wait_for(|stop| *stop).await;
    }

    fn ask(&self, name: &str, how: &str, limit: Option<Duration>) -> u64 {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let limit = limit.map_or_else(String::new, |limit| format!(r#","limit":{}"#, limit.as_millis()));
        self.history.line("ask", format_args!(r#""id":{id},"n":"{name}","how":"{how}"{limit}"#));
        id
    }

    fn end(&self, id: u64, why: &str) {
        self.history.line("end", format_args!(r#""id":{id},"why":"{why}""#));
    }

    /// Writes down the outcome of a call. `fixed`: the lease is not renewed.
    fn told(
        &self,
        id: u64,
        outcome: Result<Option<LockGuard>, LockError>,
        fixed: Option<Duration>,
    ) -> Option<LockGuard> {
        match outcome {
            Ok(Some(guard)) => {
                let fixed = fixed.map_or_else(String::new, |lease| format!(r#","fixed":{}"#, lease.as_millis()));
                let (token, until) = (guard.token(), until(&guard));
                self.history.line("hold", format_args!(r#""id":{id},"tok":{token},"until":{until}{fixed}"#));
                return Some(guard);
            }
            Ok(None) => self.end(id, "busy"),
            Err(error) => self.end(id, reason(&error)),
        }
        None
    }
}

/// The local deadline. The clock is read first, so that it is rather too early.
fn until(guard: &LockGuard) -> u64 {
    let before = now();
    before + u64::try_from(guard.valid_for().as_nanos()).unwrap()
}

fn reason(error: &LockError) -> &'static str {
    match error {
        LockError::Timeout => "timeout",
        LockError::Lost => "lost",
        LockError::QueueFull { .. } => "full",
        LockError::Unreachable(_) => "unreachable",
        LockError::Refused(_) => "refused",
        LockError::Closed => "closed",
        _ => "other",
    }
}

fn loss_name(loss: Loss) -> &'static str {
    match loss {
        Loss::Expired => "expired",
        Loss::Gone => "gone",
        Loss::Forced => "forced",
        Loss::Closed => "closed",
        _ => "other",
    }
}

impl Caller {
    async fn new(worker: &Arc<Worker>, rng: &mut Rng) -> Self {
        let stream = UnixStream::connect(&worker.settings.register).await.expect("the register is there");
        Self { worker: worker.clone(), rng: rng.fork(), register: BufReader::new(stream) }
    }

    /// Many short sections, in all the ways there are.
    fn any_of(mut self, names: Vec<String>) -> Running {
        Box::pin(async move {
            while !self.worker.has_stopped() {
                let name = self.rng.choice(&names).expect("there are names").clone();
                match self.rng.u32(0..100) {
                    0..58 => self.lock(&name, None).await,
                    58..72 => self.lock_timeout(&name).await,
                    72..80 => self.try_lock(&name).await,
                    80..86 => self.nested(&name).await,
                    86..89 => self.lock_all(&names).await,
                    89..95 => self.cancelled(&name).await,
                    95..98 => self.lock(&name, Some(self.worker.settings.lease)).await,
                    _ => self.with(&name).await,
                }
            }
        })
    }

    /// A long line of waiters whose order is known.
    fn in_line(mut self, name: String) -> Running {
        Box::pin(async move {
            while !self.worker.has_stopped() {
                let length = Duration::from_millis(self.rng.u64(20..60));
                if let Some((id, guard)) = self.wait(&name, None).await {
                    self.section(id, guard, length).await;
                }
                sleep(Duration::from_millis(self.rng.u64(0..100))).await;
            }
        })
    }

    /// Holds it for seconds, so that there is much to lose.
    fn for_long(mut self, name: String) -> Running {
        Box::pin(async move {
            while !self.worker.has_stopped() {
                let length = Duration::from_millis(self.rng.u64(3000..12_000));
                if let Some((id, guard)) = self.wait(&name, None).await {
                    self.section(id, guard, length).await;
                }
                sleep(Duration::from_millis(self.rng.u64(0..300))).await;
            }
        })
    }

    fn by_force(mut self) -> Running {
        Box::pin(async move {
            let settings = self.worker.settings.clone();
            while !self.worker.has_stopped() {
                sleep(settings.force.mul_f64(0.5 + self.rng.f64())).await;
                let own = settings.own_names(self.rng.u32(0..settings.workers));
                let work = settings.work_names();
                let names = if self.rng.u32(0..4) == 0 { &work } else { &own };
                let name = self.rng.choice(names).expect("there are names").clone();
                self.force(&name).await;
            }
        })
    }

    /// As an operator would: reads the holder, and takes that hold away. One in eight times without looking.
    async fn force(&mut self, name: &str) {
        let lock = self.worker.client.lock(name);
        let Ok(status) = lock.status().await else { return };
        let Some(holder) = status.holder else { return };
        let id = self.worker.next_id.fetch_add(1, Ordering::Relaxed);
        let blind = self.rng.u32(0..8) == 0;
        let token = if blind { String::new() } else { format!(r#","tok":{}"#, holder.token) };
        self.worker.history.line("force", format_args!(r#""id":{id},"n":"{name}"{token}"#));
        let outcome = if blind { lock.force_unlock().await } else { lock.force_unlock_token(holder.token).await };
        // Without an answer it may have run.
        if let Ok(hit) = outcome {
            self.worker.history.line("forced", format_args!(r#""id":{id},"hit":{hit}"#));
        }
    }

    /// Waits without a limit, until the load ends.
    async fn wait(&mut self, name: &str, fixed: Option<Duration>) -> Option<(u64, LockGuard)> {
        let worker = self.worker.clone();
        let lock = worker.client.lock(name);
        let lock = fixed.map_or_else(|| lock.clone(), |lease| lock.with_lease(lease));
        let id = worker.ask(name, "lock", None);
        let mut waiting = pin!(lock.lock());
        tokio::select! {
            biased;
            outcome = &mut waiting => worker.told(id, outcome.map(Some), fixed).map(|guard| (id, guard)),
            () = worker.stopped() => {
                // Before it is dropped, which is when the server hears of it.
                worker.end(id, "cancelled");
                None
            }
        }
    }

    async fn lock(&mut self, name: &str, fixed: Option<Duration>) {
        let length = self.length();
        if let Some((id, guard)) = self.wait(name, fixed).await {
            self.section(id, guard, length).await;
        }
    }

    async fn lock_timeout(&mut self, name: &str) {
        let limit = Duration::from_millis(self.rng.u64(20..3000));
        let id = self.worker.ask(name, "timeout", Some(limit));
        let outcome = self.worker.client.lock(name).lock_timeout(limit).await;
        if let Some(guard) = self.worker.told(id, outcome.map(Some), None) {
            let length = self.length();
            self.section(id, guard, length).await;
        }
    }

    async fn try_lock(&mut self, name: &str) {
        let id = self.worker.ask(name, "try", None);
        let outcome = self.worker.client.lock(name).try_lock().await;
        if let Some(guard) = self.worker.told(id, outcome, None) {
            let length = self.length();
            self.section(id, guard, length).await;
        } else {
            sleep(Duration::from_millis(self.rng.u64(1..20))).await;
        }
    }

    async fn nested(&mut self, name: &str) {
        owner::scope(async {
            let Some((id, guard)) = self.wait(name, None).await else { return };
            if let Ok(inner) = self.worker.client.lock(name).lock_timeout(Duration::from_secs(2)).await {
                self.worker.history.line("in", format_args!(r#""id":{id},"k":{}"#, inner.holds()));
                if let Ok(Unlocked::StillHeld(left)) = inner.unlock().await {
                    self.worker.history.line("out", format_args!(r#""id":{id},"k":{left}"#));
                }
            }
            let length = self.length();
            self.section(id, guard, length).await;
        })
        .await;
    }

    async fn lock_all(&mut self, names: &[String]) {
        let count = self.rng.usize(2..=4);
        let names = self.rng.choose_multiple(names.iter(), count);
        let limit = Duration::from_millis(self.rng.u64(200..4000));
        let ids: Vec<u64> = names.iter().map(|name| self.worker.ask(name, "all", Some(limit))).collect();
        match self.worker.client.lock_all(&names).lock_timeout(limit).await {
            Ok(all) => {
                let mut guards = all.into_guards();
                guards.sort_by_key(|guard| names.iter().position(|name| *name == guard.name()));
                let told = |(id, guard)| self.worker.told(id, Ok(Some(guard)), None).map(|guard| (id, guard));
                let held: Vec<_> = ids.into_iter().zip(guards).filter_map(told).collect();
                for (id, guard) in held {
                    self.section(id, guard, Duration::ZERO).await;
                }
            }
            Err(error) => ids.into_iter().for_each(|id| self.worker.end(id, reason(&error))),
        }
    }

    /// A caller that gives up by dropping its future.
    async fn cancelled(&mut self, name: &str) {
        let patience = Duration::from_micros(self.rng.u64(0..40_000));
        let worker = self.worker.clone();
        let lock = worker.client.lock(name);
        let id = worker.ask(name, "lock", None);
        let guard = {
            let mut waiting = pin!(lock.lock());
            tokio::select! {
                outcome = &mut waiting => worker.told(id, outcome.map(Some), None),
                () = sleep(patience) => {
                    worker.end(id, "cancelled");
                    None
                }
            }
        };
        if let Some(guard) = guard {
            self.section(id, guard, Duration::ZERO).await;
        }
    }

    async fn with(&mut self, name: &str) {
        let worker = self.worker.clone();
        let id = worker.ask(name, "lock", None);
        let lock = worker.client.lock(name);
        let inside = worker.clone();
        let running = lock.with(|held| async move {
            let before = now();
            let until = before + u64::try_from(held.valid_for().as_nanos()).unwrap();
            inside.history.line("hold", format_args!(r#""id":{id},"tok":{},"until":{until}"#, held.token()));
            self.write(id, name, held.token()).await;
            // The release is `with`'s own.
            inside.history.line("free", format_args!(r#""id":{id}"#));
        });
        let mut running = pin!(running);
        let outcome = tokio::select! {
            outcome = &mut running => outcome,
            () = worker.stopped() => {
                worker.end(id, "cancelled");
                return;
            }
        };
        match outcome {
            Ok(()) => worker.history.line("freed", format_args!(r#""id":{id},"why":"ok""#)),
            Err(fairlock::WithError::Lock(error)) => worker.end(id, reason(&error)),
            Err(_) => worker.history.line("freed", format_args!(r#""id":{id},"why":"lost""#)),
        }
    }

    fn length(&mut self) -> Duration {
        match self.rng.u32(0..200) {
            0 => Duration::from_millis(self.rng.u64(100..600)),
            1..40 => Duration::from_millis(self.rng.u64(1..6)),
            _ => Duration::ZERO,
        }
    }

    async fn write(&mut self, id: u64, name: &str, token: u64) {
        let request = format!("{} {id} {name} {token}\n", self.worker.settings.id);
        let mut answer = String::new();
        self.register.get_mut().write_all(request.as_bytes()).await.expect("the register is there");
        self.register.read_line(&mut answer).await.expect("the register answers");
    }

    /// Writes to the register, holds the lock for this time, and releases it. Ends early at a loss.
    async fn section(&mut self, id: u64, guard: LockGuard, length: Duration) {
        self.write(id, guard.name(), guard.token()).await;
        if !length.is_zero()
            && let Some(loss) = self.hold_on(id, &guard, length).await
        {
            let (why, known) = (loss_name(loss.0), loss.1);
            self.worker.history.line("lost", format_args!(r#""id":{id},"why":"{why}","until":{known}"#));
            return;
        }
        self.worker.history.line("free", format_args!(r#""id":{id}"#));
        if self.rng.u32(0..10) == 0 {
            return drop(guard);
        }
        let why = match guard.unlock().await {
            Ok(_) => "ok",
            Err(UnlockError::Lost(_)) => "lost",
            Err(UnlockError::Refused { .. }) => "refused",
            Err(UnlockError::Unknown { .. }) => "unknown",
            Err(_) => "other",
        };
        self.worker.history.line("freed", format_args!(r#""id":{id},"why":"{why}""#));
    }

    /// The loss, if there was one, and the last deadline that was known before it.
    async fn hold_on(&mut self, id: u64, guard: &LockGuard, length: Duration) -> Option<(Loss, u64)> {
        let (worker, over) = (self.worker.clone(), now() + u64::try_from(length.as_nanos()).unwrap());
        let step = u64::try_from(worker.settings.lease.as_nanos()).unwrap() / 6;
        // Zero until it was seen to be valid: without a deadline ahead there is none to know.
        let (mut known, mut written) = (0, 0);
        let mut lost = pin!(guard.lost());
        while now() < over && !worker.has_stopped() {
            let look = LOOK.min(Duration::from_nanos(over.saturating_sub(now())));
            tokio::select! {
                biased;
                loss = &mut lost => return Some((loss, known)),
                () = sleep(look) => {}
            }
            // The clock before the deadline: a process that is stopped between the two claims too little.
            let looked = now();
            known = match u64::try_from(guard.valid_for().as_nanos()).unwrap() {
                0 => known,
                left => looked + left,
            };
            if known > written + step {
                worker.history.line("until", format_args!(r#""id":{id},"until":{known}"#));
                written = known;
            }
        }
        None
    }
}
