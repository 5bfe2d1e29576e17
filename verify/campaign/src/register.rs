//! The resource that the locks protect: a register for each name, which refuses a token smaller than a writer's
//! greatest so far. Clients also post handles here for others; it keeps the last one of each name. It is a process of
//! its own, and clients reach it over a Unix socket, which no fault of the network touches.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::history::History;

/// The data of all names.
#[derive(Default)]
struct Names {
    greatest: HashMap<String, u64>,
    posted: HashMap<String, String>,
}

/// Serves until it is killed.
pub fn serve(socket: &Path, history: History) {
    let listener = UnixListener::bind(socket).expect("the folder is there");
    let state = Arc::new((Mutex::new(Names::default()), history));
    for stream in listener.incoming().map_while(Result::ok) {
        let state = state.clone();
        std::thread::spawn(move || serve_one(&stream, &state.0, &state.1));
    }
}

fn serve_one(stream: &UnixStream, names: &Mutex<Names>, history: &History) {
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        let Some(answer) = answer(&words, &mut names.lock().expect("no writer panics"), history) else { return };
        if (&*stream).write_all(format!("{answer}\n").as_bytes()).is_err() {
            return;
        }
    }
}

/// `write CLIENT ID NAME TOKEN`, or `read` instead: `ok` or `old`. `post NAME FROM HANDLE`: `ok`. `take NAME`:
/// `FROM HANDLE`, or `none`.
fn answer(words: &[&str], names: &mut Names, history: &History) -> Option<String> {
    match words {
        [access, client, id, name, token] => {
            let token = token.parse::<u64>().ok()?;
            let greatest = names.greatest.entry((*name).to_owned()).or_default();
            let ok = token >= *greatest;
            // Readers do not count: other readers have smaller and greater tokens.
            if *access == "write" {
                *greatest = token.max(*greatest);
            }
            // Under the lock, so that the lines have the order of the writes.
            history.line("write", format_args!(r#""by":"{client}","id":{id},"n":"{name}","tok":{token},"ok":{ok}"#));
            Some(if ok { "ok" } else { "old" }.to_owned())
        }
        ["post", name, from, handle] => {
            names.posted.insert((*name).to_owned(), format!("{from} {handle}"));
            Some("ok".to_owned())
        }
        ["take", name] => Some(names.posted.remove(*name).unwrap_or_else(|| "none".to_owned())),
        _ => None,
    }
}
