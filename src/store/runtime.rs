//! What a tokio runtime can do. Tokio has no call for this, so try it.

use std::future::Future;
use std::net::UdpSocket;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use futures::FutureExt;
use tokio::runtime::Handle;

/// Whether timers work in this runtime, and sockets if they are needed.
///
/// If a driver is missing, tokio panics, which is caught here. The process's panic hook still prints its message: to
/// suppress that, this would have to replace the hook for all threads. A program with `panic = "abort"` ends here, as
/// it would at the first timer.
pub fn has_drivers(runtime: &Handle, sockets: bool) -> bool {
    let _entered = runtime.enter();
    let timers = || drop(tokio::time::sleep(Duration::ZERO));
    catch_unwind(timers).is_ok() && (!sockets || catch_unwind(AssertUnwindSafe(register_socket)).is_ok())
}

/// Registers a socket without using it. If the machine refuses a socket, that is not the runtime's fault.
fn register_socket() {
    let Ok(socket) = UdpSocket::bind(("127.0.0.1", 0)) else { return };
    if socket.set_nonblocking(true).is_ok() {
        drop(tokio::net::UdpSocket::from_std(socket));
    }
}

/// Whether this runtime was shut down. A task spawned there then ends at once.
pub fn is_gone(runtime: &Handle) -> bool {
    let task = runtime.spawn(std::future::pending::<()>());
    task.abort_handle().is_finished() || {
        // The task would wait without end.
        task.abort();
        false
    }
}

/// The pause before a task starts again after a panic.
pub const AFTER_PANIC: Duration = Duration::from_secs(1);

/// Runs code that may call the user's, such as a log subscriber: a panic there must end neither the task nor the
/// client. `None`: it has panicked, and the process's panic hook has reported it.
pub fn survive<T>(work: impl Future<Output = T>) -> impl Future<Output = Option<T>> {
    // Not an `async fn`, which would reserve room for `work` twice: 100,000 renewals may be due together.
    AssertUnwindSafe(work).catch_unwind().map(Result::ok)
}

/// The same for a log line in the middle of a task's work: a panic there would end a leave or a probe that others
/// wait for.
pub fn log_line(line: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(line));
}
