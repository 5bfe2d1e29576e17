//! The resource that the locks protect: it refuses a token smaller than the greatest one it has seen.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixListener;
use tokio::net::UnixStream;

/// Clones share one resource.
#[derive(Clone)]
pub enum Resource {
    /// In this process.
    Here(Arc<Mutex<HashMap<String, u64>>>),
    /// In the parent process, over a socket.
    There(Arc<tokio::sync::Mutex<BufReader<UnixStream>>>),
}

impl Resource {
    pub fn new() -> Self {
        Self::Here(Arc::default())
    }

    /// Writes with this token. Returns false if the resource has seen a greater one.
    pub async fn write(&self, name: &str, token: u64) -> bool {
        match self {
            Self::Here(greatest) => {
                let mut greatest = greatest.lock().unwrap();
                let greatest = greatest.entry(name.to_owned()).or_default();
                let is_accepted = token >= *greatest;
                *greatest = token.max(*greatest);
                is_accepted
            }
            Self::There(stream) => {
                let mut stream = stream.lock().await;
                let mut answer = String::new();
                stream.write_all(format!("{token} {name}\n").as_bytes()).await.expect("the resource is there");
                stream.read_line(&mut answer).await.expect("the resource answers");
                answer == "accepted\n"
            }
        }
    }

    /// Lets other processes write to the resource while the runtime lives.
    pub fn serve(&self, path: &Path) {
        let listener = UnixListener::bind(path).unwrap();
        let resource = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, resource.clone()));
            }
        });
    }

    pub async fn connect(path: &str) -> Self {
        let stream = UnixStream::connect(path).await.expect("the resource listens");
        Self::There(Arc::new(tokio::sync::Mutex::new(BufReader::new(stream))))
    }
}

async fn serve(stream: UnixStream, resource: Resource) {
    let (reader, mut writer) = stream.into_split();
    let mut lines = BufReader::new(reader).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let (token, name) = line.split_once(' ').unwrap();
        let answer = if resource.write(name, token.parse().unwrap()).await { "accepted\n" } else { "refused\n" };
        if writer.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}
