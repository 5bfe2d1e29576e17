//! What the locks protect: a register for each name, which refuses a token smaller than the greatest it has seen. A process of
//! its own; the clients reach it over a Unix socket, which no fault of the network touches.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::history::History;

/// Serves until it is killed.
pub fn serve(socket: &Path, history: History) {
    let listener = UnixListener::bind(socket).expect("the folder is there");
    let state = Arc::new((Mutex::new(HashMap::new()), history));
    for stream in listener.incoming().map_while(Result::ok) {
        let state = state.clone();
        std::thread::spawn(move || answer(&stream, &state.0, &state.1));
    }
}

/// A request is `CLIENT ID NAME TOKEN`, the answer `ok` or `old`.
fn answer(stream: &UnixStream, greatest: &Mutex<HashMap<String, u64>>, history: &History) {
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let [client, id, name, token] = line.split(' ').collect::<Vec<_>>()[..] else { return };
        let Ok(token) = token.parse::<u64>() else { return };
        let ok = {
            let mut greatest = greatest.lock().expect("no writer panics");
            let last = greatest.entry(name.to_owned()).or_default();
            let ok = token >= *last;
            *last = token.max(*last);
            // Written under the lock: the order of the lines is that of the writes.
            history.line("write", format_args!(r#""by":"{client}","id":{id},"n":"{name}","tok":{token},"ok":{ok}"#));
            ok
        };
        let answer: &[u8] = if ok { b"ok\n" } else { b"old\n" };
        if (&*stream).write_all(answer).is_err() {
            return;
        }
    }
}
