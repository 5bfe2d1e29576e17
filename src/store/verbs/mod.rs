//! The requests: one file for each script of `lua/`, with what it asks, the order of KEYS and ARGV,
//! its reply, and how the reply is read. Most have two scripts: of a lock, and of a shared name (`lua/shared`), by the kind of
//! the keys.

pub mod acquire;
pub mod boot;
pub mod force_unlock;
pub mod give;
pub mod inspect;
pub mod leave;
pub mod poll;
pub mod raise;
pub mod release;
pub mod renew;
pub mod set_limit;

use super::script::Script;

/// All scripts.
pub static ALL: [&Script; 19] = [
    &acquire::SCRIPT,
    &boot::SCRIPT,
    &force_unlock::SCRIPT,
    &give::SCRIPT,
    &inspect::SCRIPT,
    &leave::SCRIPT,
    &poll::SCRIPT,
    &raise::SCRIPT,
    &release::SCRIPT,
    &renew::SCRIPT,
    &acquire::SHARED,
    &force_unlock::SHARED,
    &give::SHARED,
    &inspect::SHARED,
    &leave::SHARED,
    &poll::SHARED,
    &release::SHARED,
    &renew::SHARED,
    &set_limit::SHARED,
];

#[cfg(test)]
mod tests {
    use super::{ALL, Script};

    #[test]
    fn servers_get_each_line_of_a_script_but_no_comments() {
        let script = Script::new("x", "#!lua flags=x\n-- why\n\nif a then\n  b() -- because\nend\n");
        assert_eq!(script.text(), "#!lua flags=x\nif a then\nb() -- because\nend\n");
        for script in ALL {
            assert!(script.text().starts_with("#!lua flags="), "{}", script.name);
            assert!(script.text().lines().all(|line| !line.starts_with([' ', '-'])), "{}", script.name);
        }
    }
}
