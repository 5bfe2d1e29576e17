//! From the arguments to a client.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use fairlock::{Certificates, ConnectOptions, HandleError, LockClient, LockClientBuilder};
use tokio::time::sleep;

use super::args::{Args, Call};
use super::exit::Failure;
use super::guard::Wait;

const LEASE: Duration = Duration::from_secs(30);
const WAITER_TTL: Duration = Duration::from_secs(7);
const POLL_INTERVAL: Duration = Duration::from_secs(2);
const GRANT_TTL: Duration = Duration::from_secs(3);
const TOKEN_TTL: Duration = Duration::from_secs(24 * 3600);
/// The library's upper bound.
const LONGEST_LEASE: Duration = Duration::from_secs(365 * 24 * 3600);
/// The first pause between two attempts to connect, which doubles, and the longest one. Many attempts do not help a
/// server that is full or has just started.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];

/// Applies the options that every command has. The other times follow these, as the library requires.
pub fn builder(args: &Args, lease: Option<Duration>) -> LockClientBuilder {
    let lease = lease.unwrap_or_else(|| usual_lease(args));
    let timeout = args.timeout.min(lease / 2);
    let poll_interval = POLL_INTERVAL.min(lease / 2);
    let builder = LockClient::builder()
        .prefix(&args.prefix)
        .lease(lease)
        .operation_timeout(timeout)
        .poll_interval(poll_interval)
        .waiter_ttl(WAITER_TTL.max(timeout.saturating_mul(3)))
        .token_ttl(TOKEN_TTL.max(lease));
    match args.strict_restart {
        Some(longest) => {
            builder.strict_restart(longest).grant_ttl(GRANT_TTL.min(longest.saturating_sub(poll_interval)))
        }
        None => builder,
    }
}

fn usual_lease(args: &Args) -> Duration {
    args.strict_restart.map_or(LEASE, |longest| longest.min(LEASE))
}

/// A builder for a handle with this lease, which may be shorter than the usual lease, and longer than the usual
/// `token_ttl`. Fails before the wait for the lock if the lease does not fit.
pub fn builder_for_handle(args: &Args, lease: Duration) -> Result<LockClientBuilder, Failure> {
    check_for_handles(args)?;
    check_longest(args, "the lease of a handle", lease)?;
    Ok(builder(args, Some(lease.min(usual_lease(args)))).token_ttl(TOKEN_TTL.max(lease)))
}

/// A builder for a lock that stays taken for this long, as if a handle held it. Fails before the command runs if the
/// time does not fit.
pub fn builder_for_at_least(
    args: &Args,
    lease: Option<Duration>,
    at_least: Duration,
) -> Result<LockClientBuilder, Failure> {
    if servers(args)?.len() > 1 {
        return Err(Failure::usage("--at-least needs one server: several masters do not support it"));
    }
    check_longest(args, "--at-least", at_least)?;
    Ok(builder(args, lease).token_ttl(TOKEN_TTL.max(at_least).max(lease.unwrap_or_default())))
}

/// Several servers have no handles.
pub fn check_for_handles(args: &Args) -> Result<(), Failure> {
    if servers(args)?.len() > 1 { Err(HandleError::SeveralServers.into()) } else { Ok(()) }
}

/// The client checks the lease too, but its error would name an option that follows the lease.
fn check_longest(args: &Args, what: &str, lease: Duration) -> Result<(), Failure> {
    let too_long = |most: &str| {
        let lease = humantime::format_duration(lease);
        Err(Failure::usage(format!("{what} ({lease}) must not be longer than {most}")))
    };
    match args.strict_restart {
        _ if lease > LONGEST_LEASE => too_long("365 days"),
        Some(longest) if longest < lease => {
            too_long(&format!("--strict-restart ({})", humantime::format_duration(longest)))
        }
        _ => Ok(()),
    }
}

pub fn servers(args: &Args) -> Result<Vec<ConnectOptions>, Failure> {
    let servers: Vec<_> = args.urls().map(|url| server(args, url)).collect::<Result<_, _>>()?;
    if servers.is_empty() { Err(Failure::usage("--url, or FAIRLOCK_URL, is empty")) } else { Ok(servers) }
}

fn server(args: &Args, url: &str) -> Result<ConnectOptions, Failure> {
    let mut server = ConnectOptions::from_url(url)?;
    if let Some(path) = &args.cacert {
        // Fails early: the provider reads the file only at each connect.
        File::open(path).map_err(|error| Failure::usage(of_file(path, error).to_string()))?;
        server = with_authority_in(server, path);
    }
    if let Some(password) = &args.sentinel_password {
        server = server.sentinel_password(password);
    }
    Ok(server)
}

/// Reads the file at each connect: someone may replace the authority during a hold.
fn with_authority_in(server: ConnectOptions, path: &Path) -> ConnectOptions {
    let path = path.to_owned();
    server.certificates_provider(move || {
        let path = path.clone();
        async move {
            let reading = tokio::task::spawn_blocking(move || fs::read(&path).map_err(|error| of_file(&path, error)));
            reading.await?.map(|pem| Certificates::new().root_certificate(pem))
        }
    })
}

fn of_file(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("--cacert {}: {error}", path.display()))
}

pub async fn connect_with(args: &Args, builder: LockClientBuilder) -> Result<LockClient, Failure> {
    Ok(builder.connect_with(servers(args)?).await?)
}

/// Connects for a call that may wait: retries until the server is ready or the call's wait has ended. Also returns how
/// long the call may still wait for the lock.
pub async fn connect_within(
    args: &Args,
    mut builder: LockClientBuilder,
    call: &Call,
) -> Result<(LockClient, Wait), Failure> {
    if let Some(label) = &call.label {
        builder = builder.label(label);
    }
    let (servers, begun, [mut pause, longest_pause]) = (servers(args)?, Instant::now(), PAUSES);
    loop {
        let outcome = builder.clone().connect_with(servers.clone()).await;
        match (outcome, call.wait().after(begun.elapsed())) {
            (Ok(client), left) => return Ok((client, left)),
            (Err(error), Wait::For(left)) if error.may_pass() => {
                tracing::info!(%error, "not ready yet");
                sleep(pause.min(left)).await;
                pause = longest_pause.min(2 * pause);
            }
            (Err(error), _) => return Err(error.into()),
        }
    }
}

pub async fn connect(args: &Args) -> Result<LockClient, Failure> {
    connect_with(args, builder(args, None)).await
}
