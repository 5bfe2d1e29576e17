//! A client process. It uses only the public API, and records its requests, its holds, and until when it may rely on
//! them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use fairlock::LockClient;
use fastrand::Rng;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::caller::{Caller, Worker};
use crate::history::History;
use crate::kinds::{Permits, Wanted, Writes};
use crate::settings::Settings;

pub fn work(settings: Settings) {
    let runtime = runtime(&settings.runtime);
    // `split`: the client's runtime is not the callers' runtime.
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
        // A connect fails while the server's user has too few rights.
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
    for _ in 0..3 * settings.shared {
        callers.push(Caller::new(worker, &mut rng).await.of_shared(settings.semaphores(), settings.rw_names()));
    }
    for (name, permits) in settings.long_semaphores() {
        callers.push(Caller::new(worker, &mut rng).await.with_permits_for_long(name, permits));
    }
    for name in settings.long_rw_names() {
        callers.push(Caller::new(worker, &mut rng).await.reading_for_long(name));
    }
    for name in settings.handle_names() {
        callers.push(Caller::new(worker, &mut rng).await.that_detaches(name.clone()));
        callers.push(Caller::new(worker, &mut rng).await.that_attaches(name));
    }
    for (name, permits) in settings.handle_semaphores() {
        callers.push(Caller::new(worker, &mut rng).await.that_detaches_permits(name.clone(), permits));
        callers.push(Caller::new(worker, &mut rng).await.that_attaches_permits(name));
    }
    if !settings.force.is_zero() {
        callers.push(Caller::new(worker, &mut rng).await.by_force());
    }
    callers.into_iter().for_each(|caller| drop(tasks.spawn(caller)));
    tasks
}

/// Locks each name once. So the server serves a queue in which only the dead remain, and their places go. It takes a
/// shared name as a whole, which it gets only after everything that the dead still hold has ended.
async fn sweep(worker: &Arc<Worker>) {
    let (client, settings) = (&worker.client, &worker.settings);
    let mut caller = Caller::new(worker, &mut Rng::with_seed(settings.seed)).await;
    for name in settings.locks() {
        sweep_one(&mut caller, &client.lock(&name)).await;
    }
    for (name, of) in settings.all_semaphores() {
        sweep_one(&mut caller, &Permits { semaphore: client.semaphore(name, of), of, weight: of }).await;
    }
    for name in settings.rw_names().into_iter().chain(settings.long_rw_names()) {
        sweep_one(&mut caller, &Writes(client.rw_lock(name))).await;
    }
}

async fn sweep_one<W: Wanted>(caller: &mut Caller, wanted: &W) {
    if let Some((id, guard)) = caller.wait_for(wanted, Duration::from_secs(40)).await {
        caller.section(id, guard, Duration::ZERO).await;
    }
}
