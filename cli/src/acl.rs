//! `fairlock acl`.

use fairlock::cli::{Beside, rights};
use serde::Serialize;

use super::args::{Acl, Args};
use super::exit::{self, Failure};
use super::output::Output;

#[derive(Debug, Serialize)]
struct User<'a> {
    user: &'a str,
    /// In the form that `ACL SETUSER` takes.
    rights: Vec<String>,
}

pub fn run(args: &Args, acl: &Acl, out: &mut Output) -> Result<u8, Failure> {
    // Whitespace separates the words of `ACL SETUSER`.
    for (what, word) in [("--user", &acl.user), ("--prefix", &args.prefix)] {
        if word.is_empty() || word.contains(char::is_whitespace) {
            return Err(Failure::usage(format!("{what} is {word:?}: an ACL needs a word without spaces")));
        }
    }
    if args.prefix.contains(['*', '?', '[', ']', '\\']) {
        return Err(Failure::usage(format!("--prefix is {:?}: an ACL reads * ? [ ] and \\ as a pattern", args.prefix)));
    }
    let beside = Beside {
        another_database: acl.another_database,
        cluster: acl.cluster,
        strict_restart: args.strict_restart.is_some(),
        lists: acl.list,
    };
    let user = User { user: &acl.user, rights: rights(&args.prefix, beside) };
    if acl.json {
        out.json(&user)?;
    } else {
        // `reset` takes away everything that the user had before, including its passwords.
        out.line(format!("ACL SETUSER {} reset on >PASSWORD {}", user.user, user.rights.join(" ")))?;
    }
    Ok(exit::OK)
}
