//! Hosts: network namespaces, each with a veth pair to this process's own namespace, which routes between them.
//! Everything is inside namespaces that scripts/campaign made, so nothing outlives this process or reaches another
//! network.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

/// A machine of the campaign.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    pub name: String,
    number: usize,
}

impl Host {
    pub fn address(&self) -> String {
        format!("10.77.{}.2", self.number)
    }

    fn link(&self) -> String {
        format!("veth{}", self.number)
    }

    /// A command on this host. It replaces `ip`, so the id of the child is its own.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }
}

/// The network between the hosts.
pub struct Network {
    hosts: Mutex<Vec<Host>>,
}

impl Network {
    pub fn new() -> Self {
        run("ip link set lo up");
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("namespaces of our own: use scripts/campaign");
        Self { hosts: Mutex::new(Vec::new()) }
    }

    pub fn host(&self, name: &str) -> Host {
        let mut hosts = self.hosts.lock().unwrap();
        let host = Host { name: name.to_owned(), number: hosts.len() + 1 };
        let (number, link, address) = (host.number, host.link(), host.address());
        run(&format!("ip netns add {name}"));
        run(&format!("ip link add {link} type veth peer name eth0 netns {name}"));
        run(&format!("ip addr add 10.77.{number}.1/24 dev {link}"));
        run(&format!("ip link set {link} up"));
        run(&format!("ip -n {name} addr add {address}/24 dev eth0"));
        run(&format!("ip -n {name} link set eth0 up"));
        run(&format!("ip -n {name} link set lo up"));
        run(&format!("ip -n {name} route add default via 10.77.{number}.1"));
        hosts.push(host.clone());
        host
    }

    /// Pulls the cable of a host. Others learn that it is unreachable.
    pub fn pull(&self, host: &Host) {
        run(&format!("ip link set {} down", host.link()));
    }

    pub fn plug_in(&self, host: &Host) {
        run(&format!("ip link set {} up", host.link()));
    }

    /// From now on the network silently drops packets from one to the other.
    pub fn drop_packets(&self, from: &Host, to: &Host) {
        run(&format!("ip rule add from {} to {} blackhole", from.address(), to.address()));
    }

    pub fn pass_packets(&self, from: &Host, to: &Host) {
        run(&format!("ip rule del from {} to {} blackhole", from.address(), to.address()));
    }
}

/// Runs a command that must not fail.
pub fn run(command: &str) {
    let mut words = command.split(' ');
    let output = Command::new(words.next().expect("a program")).args(words).output();
    let output = output.unwrap_or_else(|error| panic!("{command}: {error}"));
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}
