//! What a tokio runtime can do. Tokio has no call for that, so it is tried out.

use std::future::Future;
use std::net::UdpSocket;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use futures::FutureExt;
use tokio::runtime::Handle;

/// Whether timers work in this runtime, and sockets if they are needed.
///
/// Where a driver is missing tokio panics, which is caught here. What remains of it is the message that
/// the process's panic hook prints; to keep that back, the hook would have to be replaced for all
/// threads. A program with `panic = "abort"` ends here, as it would at the first timer.
pub fn has_drivers(runtime: &Handle, sockets: bool) -> bool {
    let _entered = runtime.enter();
    let timers = || drop(tokio::time::sleep(Duration::ZERO));
    catch_unwind(timers).is_ok() && (!sockets || catch_unwind(AssertUnwindSafe(register_socket)).is_ok())
}

/// Registers a socket that nothing is sent by. A machine that gives none is no fault of the runtime.
fn register_socket() {
    let Ok(socket) = UdpSocket::bind(("127.0.0.1", 0)) else { return };
    if socket.set_nonblocking(true).is_ok() {
        drop(tokio::net::UdpSocket::from_std(socket));
    }
}

/// Whether this runtime was shut down. Then a task that is spawned there has ended at once.
pub fn is_gone(runtime: &Handle) -> bool {
    let task = runtime.spawn(std::future::pending::<()>());
    task.abort_handle().is_finished() || {
        // The task would wait without end.
        task.abort();
        false
    }
}

/// The pause before a task begins anew after a panic.
pub const AFTER_PANIC: Duration = Duration::from_secs(1);

/// Runs what may call code of the user, such as a log subscriber: a panic there must end neither the task nor the
/// client. `None`: it has panicked, and the process's panic hook has reported it.
pub fn survive<T>(work: impl Future<Output = T>) -> impl Future<Output = Option<T>> {
    // No `async fn`, which would have room for `work` twice: 100,000 renewals may be due together.
    AssertUnwindSafe(work).catch_unwind().map(Result::ok)
}

/// The same for a line of the log in the middle of what any task may do: it would end with a leave or a probe that others wait for.
pub fn log_line(line: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(line));
}
