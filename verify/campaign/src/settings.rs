//! The settings of a worker on its command line, as `key=value` words.

use std::collections::HashMap;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// This process in the history: `host.incarnation`.
    pub id: String,
    pub host: String,
    /// The number of its host among the workers' hosts, and the number of workers.
    pub number: u32,
    pub workers: u32,
    pub seed: u64,
    pub urls: Vec<String>,
    pub history: String,
    pub register: String,
    /// `current`, `multi`, or `split`: the client's runtime is not the callers' runtime.
    pub runtime: String,
    pub lease: Duration,
    pub op: Duration,
    pub poll: Duration,
    /// The longest lease of all workers, or zero for none.
    pub strict: Duration,
    /// Names that everybody wants, and tasks that want them.
    pub names: u32,
    pub tasks: u32,
    /// Names with a long line of waiters: two tasks of each worker on each.
    pub lines: u32,
    /// Names that two workers want, and hold for long.
    pub own: u32,
    /// The number of shared names of each kind. There are twice as many names whose locks are detached. Several
    /// masters have neither.
    pub shared: u32,
    /// The pause between two `force_unlock`; zero for none.
    pub force: Duration,
    /// Only locks each name once, to pass on what dead processes left, and ends.
    pub sweep: bool,
}

impl Settings {
    pub fn words(&self) -> Vec<String> {
        let ms = |time: Duration| time.as_millis().to_string();
        let pairs = [
            ("id", self.id.clone()),
            ("host", self.host.clone()),
            ("number", self.number.to_string()),
            ("workers", self.workers.to_string()),
            ("seed", self.seed.to_string()),
            ("urls", self.urls.join(" ")),
            ("history", self.history.clone()),
            ("register", self.register.clone()),
            ("runtime", self.runtime.clone()),
            ("lease", ms(self.lease)),
            ("op", ms(self.op)),
            ("poll", ms(self.poll)),
            ("strict", ms(self.strict)),
            ("names", self.names.to_string()),
            ("tasks", self.tasks.to_string()),
            ("lines", self.lines.to_string()),
            ("own", self.own.to_string()),
            ("shared", self.shared.to_string()),
            ("force", ms(self.force)),
            ("sweep", self.sweep.to_string()),
        ];
        pairs.map(|(key, value)| format!("{key}={value}")).to_vec()
    }

    pub fn read(words: &[String]) -> Self {
        let pairs: HashMap<&str, &str> = words.iter().filter_map(|word| word.split_once('=')).collect();
        let text = |key: &str| (*pairs.get(key).unwrap_or_else(|| panic!("no {key}"))).to_owned();
        let number = |key: &str| text(key).parse::<u64>().unwrap_or_else(|_| panic!("{key} is no number"));
        let small = |key: &str| u32::try_from(number(key)).expect("a small number");
        let time = |key: &str| Duration::from_millis(number(key));
        Self {
            id: text("id"),
            host: text("host"),
            number: small("number"),
            workers: small("workers"),
            seed: number("seed"),
            urls: text("urls").split(' ').map(ToOwned::to_owned).collect(),
            history: text("history"),
            register: text("register"),
            runtime: text("runtime"),
            lease: time("lease"),
            op: time("op"),
            poll: time("poll"),
            strict: time("strict"),
            names: small("names"),
            tasks: small("tasks"),
            lines: small("lines"),
            own: small("own"),
            shared: small("shared"),
            force: time("force"),
            sweep: text("sweep") == "true",
        }
    }

    /// Names that everybody wants.
    pub fn work_names(&self) -> Vec<String> {
        (0..self.names).map(|number| format!("work:{number}")).collect()
    }

    pub fn line_names(&self) -> Vec<String> {
        (0..self.lines).map(|number| format!("line:{number}")).collect()
    }

    /// The names that this worker shares with the worker before it, or with the one after it.
    pub fn own_names(&self, of: u32) -> Vec<String> {
        (0..self.own).map(|number| format!("own:{}:{number}", of % self.workers)).collect()
    }

    /// Locks that some callers detach and others attach.
    pub fn handle_names(&self) -> Vec<String> {
        (0..2 * self.shared).map(|number| format!("handle:{number}")).collect()
    }

    /// With their numbers of permits.
    pub fn semaphores(&self) -> Vec<(String, u32)> {
        self.shared_names("sem").zip((2..).step_by(3)).collect()
    }

    /// Callers hold their permits for long.
    pub fn long_semaphores(&self) -> Vec<(String, u32)> {
        self.shared_names("sem-long").map(|name| (name, 6)).collect()
    }

    /// Some callers detach their permits, others attach them.
    pub fn handle_semaphores(&self) -> Vec<(String, u32)> {
        self.shared_names("sem-handle").map(|name| (name, 3)).collect()
    }

    pub fn all_semaphores(&self) -> Vec<(String, u32)> {
        [self.semaphores(), self.long_semaphores(), self.handle_semaphores()].concat()
    }

    pub fn rw_names(&self) -> Vec<String> {
        self.shared_names("rw").collect()
    }

    pub fn long_rw_names(&self) -> Vec<String> {
        self.shared_names("rw-long").collect()
    }

    fn shared_names(&self, kind: &'static str) -> impl Iterator<Item = String> {
        (0..self.shared).map(move |number| format!("{kind}:{number}"))
    }

    /// Names with one holder at a time.
    pub fn locks(&self) -> Vec<String> {
        let own = (0..self.workers).flat_map(|worker| self.own_names(worker));
        let names = self.work_names().into_iter().chain(self.line_names()).chain(own);
        names.chain(self.handle_names()).collect()
    }

    pub fn all_names(&self) -> Vec<String> {
        let semaphores = self.all_semaphores().into_iter().map(|(name, _)| name);
        let rw_names = self.rw_names().into_iter().chain(self.long_rw_names());
        self.locks().into_iter().chain(semaphores).chain(rw_names).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_reads_what_the_driver_wrote() {
        let second = Duration::from_secs(1);
        let settings = Settings {
            id: "w1.2".into(),
            host: "w1".into(),
            number: 1,
            workers: 6,
            seed: 7,
            urls: vec!["redis://a/".into(), "redis://b/".into()],
            history: "/tmp/h".into(),
            register: "/tmp/r".into(),
            runtime: "multi".into(),
            lease: 3 * second,
            op: second,
            poll: second,
            strict: Duration::ZERO,
            names: 16,
            tasks: 24,
            lines: 4,
            own: 10,
            shared: 2,
            force: 2 * second,
            sweep: false,
        };
        assert_eq!(Settings::read(&settings.words()), settings);
        assert_eq!(settings.all_names().len(), 16 + 4 + 60 + 7 * 2);
    }
}
