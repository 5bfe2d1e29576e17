//! What a tokio runtime can do. Tokio has no call that tells, so it is tried out.

use std::future::{Future, poll_fn};
use std::net::UdpSocket;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use futures::FutureExt;
use tokio::runtime::{Handle, Id, RuntimeFlavor};

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

/// A task begins anew so long after a panic.
pub const AFTER_PANIC: Duration = Duration::from_secs(1);

/// Runs what may call code of the user, such as a log subscriber: a panic there must end neither the task nor the
/// client. `None`: it has panicked, and the process's panic hook has said so.
pub async fn survive<T>(work: impl Future<Output = T>) -> Option<T> {
    AssertUnwindSafe(work).catch_unwind().await.ok()
}

/// Drives a call that may be polled anywhere: in the client's `own` runtime, in another one, or in none. A
/// timer panics outside of every runtime, and in one without a time driver. So elsewhere than in `own` the
/// call enters `own` while it is polled. `None`: that one has ended, and with it its timers.
pub fn drive<F: Future>(
    own: &Handle,
    is_known_gone: impl Fn() -> bool,
    mut call: Pin<&mut F>,
) -> impl Future<Output = Option<F::Output>> {
    let mut looked_at = None;
    poll_fn(move |context| {
        // Asked at each poll: a future may be handed from one executor to another.
        if has_timers_here(own, &mut looked_at) {
            return call.as_mut().poll(context).map(Some);
        }
        // Before the poll, since timers of a runtime that has ended panic. The end of a client's runtime
        // wakes its calls, so each of them comes here once more.
        if is_known_gone() {
            return Poll::Ready(None);
        }
        let _entered = own.enter();
        let polled = catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(context)));
        match polled {
            Ok(polled) => polled.map(Some),
            // It ended right after the look at it. Nothing else in a call panics.
            Err(_) if is_gone(own) => Poll::Ready(None),
            Err(panic) => resume_unwind(panic),
        }
    })
}

/// Whether a call of a client that lives in `own` has timers where it is polled now, without entering `own`.
///
/// `looked_at`: what the last look at another runtime has found, since it may cost a caught panic.
fn has_timers_here(own: &Handle, looked_at: &mut Option<(Id, bool)>) -> bool {
    let Ok(here) = Handle::try_current() else { return false };
    if here.id() == own.id() {
        return true;
    }
    // Other timers only where those of `own` may rest. A runtime of the current thread is not driven
    // outside of its `block_on`, and a time-out that never comes is worse than one by another clock.
    if own.runtime_flavor() != RuntimeFlavor::CurrentThread {
        return false;
    }
    let (_, has_timers) =
        looked_at.filter(|(seen, _)| *seen == here.id()).unwrap_or_else(|| (here.id(), has_drivers(&here, false)));
    *looked_at = Some((here.id(), has_timers));
    has_timers
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Waker};

    /// The look at the runtime and the poll are two steps: it may end in between.
    #[test]
    fn a_runtime_that_ends_between_the_look_and_the_poll_is_gone() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let own = runtime.handle().clone();
        drop(runtime);
        let call = pin!(async { tokio::time::sleep(Duration::from_secs(1)).await });
        let driven = pin!(drive(&own, || false, call));
        assert_eq!(driven.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(None));
    }
}
