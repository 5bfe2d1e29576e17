//! A TCP proxy that knows the boundaries of commands and replies, and can delay, drop or change them.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{Random, Server, eventually};

pub struct Proxy {
    server: redis::Client,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    /// The address of this proxy.
    word: String,
    /// The port of the server.
    to: Mutex<u16>,
    faults: Mutex<Faults>,
    /// While this is true, the proxy delivers nothing. Later it delivers everything, as TCP does after an outage.
    stalled: watch::Sender<bool>,
    /// A higher number resets all existing connections.
    generation: watch::Sender<u64>,
    /// How many connections the proxy has accepted.
    accepted: Mutex<u64>,
    /// Connections up to this number deliver nothing.
    half_open: watch::Sender<u64>,
    /// The local ports of the connections from this proxy to the server, which lists them by port.
    ports: Mutex<HashSet<u16>>,
}

struct Faults {
    delay: Duration,
    drop_pushes: bool,
    refuse: bool,
    lose_reply: f64,
    lose_next_reply: bool,
    end_with_reply: Option<usize>,
    random: Random,
    rewrite: Option<(Vec<u8>, Vec<u8>)>,
}

impl Proxy {
    pub async fn start(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let shared = Arc::new(Shared {
            word: listener.local_addr().unwrap().to_string(),
            to: Mutex::new(server.port()),
            faults: Mutex::new(Faults {
                delay: Duration::ZERO,
                drop_pushes: false,
                refuse: false,
                lose_reply: 0.0,
                lose_next_reply: false,
                end_with_reply: None,
                random: Random::new(0),
                rewrite: None,
            }),
            stalled: watch::Sender::new(false),
            generation: watch::Sender::new(0),
            accepted: Mutex::new(0),
            half_open: watch::Sender::new(0),
            ports: Mutex::default(),
        });
        let accepting = tokio::spawn(accept(listener, shared.clone()));
        Self { server: redis::Client::open(server.url()).unwrap(), shared, accepting }
    }

    /// The name of this proxy in the history.
    pub fn word(&self) -> &str {
        &self.shared.word
    }

    pub fn url(&self) -> String {
        format!("redis://{}/", self.word())
    }

    fn set(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.shared.faults.lock().unwrap());
    }

    /// Delays each request and each reply by this much.
    pub fn delay(&self, delay: Duration) {
        self.set(|faults| faults.delay = delay);
    }

    /// While it is on, the proxy delivers nothing in either direction. When it is switched off, the proxy delivers
    /// everything.
    pub fn blackhole(&self, on: bool) {
        self.shared.stalled.send_replace(on);
    }

    /// Present connections deliver nothing from now on and cause no error, as after a cut cable. New ones work.
    pub fn cut_silently(&self) {
        self.shared.half_open.send_replace(*self.shared.accepted.lock().unwrap());
    }

    pub fn drop_pushes(&self, on: bool) {
        self.set(|faults| faults.drop_pushes = on);
    }

    /// Closes new connections at once.
    pub fn refuse(&self, on: bool) {
        self.set(|faults| faults.refuse = on);
    }

    /// Loses the reply to a script with this probability, and the connection with it. RESP lacks request ids, so a
    /// single reply cannot be missing on a connection that stays open.
    pub fn lose_replies(&self, probability: f64, seed: u64) {
        self.set(|faults| (faults.lose_reply, faults.random) = (probability, Random::new(seed)));
    }

    /// The same for the next reply to a script.
    pub fn lose_next_reply(&self) {
        self.set(|faults| faults.lose_next_reply = true);
    }

    /// Each connection ends after `number` replies to scripts. The last one arrives together with the end.
    pub fn end_with_reply(&self, number: usize) {
        self.set(|faults| faults.end_with_reply = Some(number));
    }

    pub fn reset_all(&self) {
        self.shared.generation.send_modify(|generation| *generation += 1);
    }

    /// Another server takes over: resets present connections, and leads new ones to that server.
    pub fn fail_over_to(&self, server: &Server) {
        self.move_to(server);
        self.reset_all();
    }

    /// Leads new connections to that server, as when a name gets another address. Present connections stay.
    pub fn move_to(&self, server: &Server) {
        *self.shared.to.lock().unwrap() = server.port();
    }

    /// Replaces a text in replies with another of the same length.
    pub fn rewrite(&self, from: &str, to: &str) {
        assert_eq!(from.len(), to.len());
        self.set(|faults| faults.rewrite = Some((from.into(), to.into())));
    }

    /// Waits until the server has closed all connections from this proxy.
    pub async fn assert_no_connections(&self) {
        let mut redis = self.server.get_multiplexed_async_connection().await.unwrap();
        let list = redis::cmd("CLIENT").arg("LIST").clone();
        let redis = tokio::sync::Mutex::new(&mut redis);
        eventually("the server has closed them", async || {
            let clients: String = list.query_async(*redis.lock().await).await.unwrap();
            let ports = self.shared.ports.lock().unwrap();
            !ports.iter().any(|port| clients.contains(&format!(" addr=127.0.0.1:{port} ")))
        })
        .await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.reset_all();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        if shared.faults.lock().unwrap().refuse {
            continue;
        }
        let to = *shared.to.lock().unwrap();
        let Ok(server) = TcpStream::connect(("127.0.0.1", to)).await else { continue };
        shared.ports.lock().unwrap().insert(server.local_addr().unwrap().port());
        client.set_nodelay(true).unwrap();
        server.set_nodelay(true).unwrap();
        tokio::spawn(forward(client, server, shared.clone()));
    }
}

/// Forwards one connection, until either side or a fault closes it.
async fn forward(client: TcpStream, server: TcpStream, shared: Arc<Shared>) {
    let mut generation = shared.generation.subscribe();
    let number = {
        let mut accepted = shared.accepted.lock().unwrap();
        *accepted += 1;
        *accepted
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tracing::trace!(target: "proxy", "{} {number} is a new connection", shared.word);
    let unanswered = Unanswered::default();
    let replies = tokio::spawn(replies(
        from_server,
        deliver(to_client, number, &shared),
        number,
        shared.clone(),
        unanswered.clone(),
    ));
    let stop_replies = replies.abort_handle();
    let commands = tokio::spawn(commands(from_client, deliver(to_server, number, &shared), shared.clone(), unanswered));
    let stop_commands = commands.abort_handle();
    tokio::select! {
        _ = replies => stop_commands.abort(),
        // The client is gone. The proxy still delivers what the client has sent, as a real network would.
        _ = commands => stop_replies.abort(),
        _ = generation.changed() => {
            stop_replies.abort();
            stop_commands.abort();
        }
    }
}

/// The outstanding replies, in order. `Some` describes the request if the command runs a script.
type Unanswered = Arc<Mutex<VecDeque<Option<String>>>>;

/// Frames to deliver, with the time at which each is due.
type Frames = mpsc::UnboundedSender<(Instant, Vec<u8>)>;

/// Writes each frame when it is due, in order. When the sender is gone it writes the remaining frames and closes its
/// side.
fn deliver(mut to: OwnedWriteHalf, number: u64, shared: &Arc<Shared>) -> Frames {
    let (frames, mut queue) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let (mut stalled, mut half_open) = (shared.stalled.subscribe(), shared.half_open.subscribe());
    tokio::spawn(async move {
        while let Some((due, frame)) = queue.recv().await {
            tokio::time::sleep_until(due).await;
            let delivers = half_open.wait_for(|cut| *cut < number).await.is_ok();
            if !delivers || stalled.wait_for(|stalled| !stalled).await.is_err() || to.write_all(&frame).await.is_err() {
                return;
            }
        }
    });
    frames
}

async fn commands(mut from: OwnedReadHalf, to: Frames, shared: Arc<Shared>, unanswered: Unanswered) {
    let mut buffer = Vec::new();
    while let Some(frame) = next_frame(&mut from, &mut buffer).await {
        let head = String::from_utf8_lossy(&frame[..frame.len().min(40)]).to_uppercase();
        unanswered.lock().unwrap().push_back(head.contains("\r\nEVAL").then(|| request_of(&frame)));
        let due = Instant::now() + shared.faults.lock().unwrap().delay;
        if to.send((due, frame)).is_err() {
            return;
        }
    }
}

async fn replies(mut from: OwnedReadHalf, to: Frames, number: u64, shared: Arc<Shared>, unanswered: Unanswered) {
    let (mut buffer, mut scripts) = (Vec::new(), 0);
    while let Some(mut frame) = next_frame(&mut from, &mut buffer).await {
        // A push, except the reply to SUBSCRIBE, which is a push too.
        let is_message = frame.starts_with(b">") && !frame.windows(9).take(24).any(|word| word == b"subscribe");
        let script = if is_message { None } else { unanswered.lock().unwrap().pop_front().flatten() };
        let mut faults = shared.faults.lock().unwrap();
        if is_message && faults.drop_pushes {
            continue;
        }
        let probability = faults.lose_reply;
        let is_script = script.is_some();
        if let Some(request) = script {
            scripts += 1;
            let lost = std::mem::take(&mut faults.lose_next_reply) || faults.random.chance(probability);
            let (what, reply) =
                (if lost { "LOST" } else { "told" }, String::from_utf8_lossy(&frame).replace("\r\n", " "));
            tracing::trace!(target: "proxy", "{} {number} {what}: {reply:.60} <- {request}", shared.word);
            if lost {
                return;
            }
        }
        if let Some((from, to)) = &faults.rewrite {
            replace(&mut frame, from, to);
        }
        let ends = is_script && faults.end_with_reply == Some(scripts);
        if to.send((Instant::now() + faults.delay, frame)).is_err() || ends {
            return;
        }
    }
}

/// The lock and the arguments of a script.
fn request_of(frame: &[u8]) -> String {
    // They come after the command, the script, and the number of keys.
    let words = words(frame, 3);
    let keys = words.iter().filter(|word| word.starts_with("fairlock:{")).count();
    let arguments = words.iter().skip(keys).take(6);
    words.iter().take(keys.min(1)).chain(arguments).map(String::as_str).collect::<Vec<_>>().join(" ")
}

/// The texts in a frame, without the first few.
fn words(frame: &[u8], skipped: usize) -> Vec<String> {
    let text = String::from_utf8_lossy(frame);
    // A line with its length precedes each text.
    text.split("\r\n").skip(2 + 2 * skipped).step_by(2).map(ToOwned::to_owned).collect()
}

fn replace(frame: &mut [u8], from: &[u8], to: &[u8]) {
    if let Some(at) = frame.windows(from.len()).position(|window| window == from) {
        frame[at..at + to.len()].copy_from_slice(to);
    }
}

async fn next_frame(from: &mut (impl AsyncRead + Unpin), buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    loop {
        if let Some(length) = frame_length(buffer) {
            return Some(buffer.drain(..length).collect());
        }
        match from.read_buf(buffer).await {
            Ok(0) | Err(_) => return None,
            Ok(_) => {}
        }
    }
}

/// The length of the first RESP3 frame, if it is complete.
fn frame_length(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(2).position(|window| window == b"\r\n")? + 2;
    let number = || std::str::from_utf8(&bytes[1..end - 2]).ok()?.parse::<i64>().ok();
    let elements = |count: i64| (0..count).try_fold(end, |length, _| Some(length + frame_length(&bytes[length..])?));
    match bytes[0] {
        b'$' | b'!' | b'=' => {
            let length = usize::try_from(number()?).map_or(end, |length| end + length + 2);
            (bytes.len() >= length).then_some(length)
        }
        b'*' | b'~' | b'>' => elements(number()?.max(0)),
        b'%' => elements(2 * number()?),
        // An attribute precedes the value that it describes.
        b'|' => elements(2 * number()? + 1),
        _ => Some(end),
    }
}
