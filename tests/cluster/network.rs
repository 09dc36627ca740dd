use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Hosts of a network of their own: network namespaces behind two bridges, of which all are at the first one
/// until some are set apart. Needs root.
pub struct Network {
    switch: String,
    hosts: Vec<String>,
}

const JOINED: &str = "br0";
const APART: &str = "br1";

#[track_caller]
fn ip(words: &str) {
    let mut command = Command::new("ip");
    command.args(words.split(' '));
    let output = command.output().expect("ip is installed (apt: iproute2)");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {words}: {said}");
}

impl Network {
    pub fn new(hosts: usize) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let (process, number) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let switch = format!("onehold-{process}-{number}");
        let network = Self {
            hosts: (0..hosts).map(|at| format!("{switch}-{at}")).collect(),
            switch,
        };
        let switch = &network.switch;
        ip(&format!("netns add {switch}"));
        for bridge in [JOINED, APART] {
            ip(&format!("-n {switch} link add {bridge} type bridge"));
            ip(&format!("-n {switch} link set {bridge} up"));
        }
        for (at, host) in network.hosts.iter().enumerate() {
            ip(&format!("netns add {host}"));
            ip(&format!(
                "-n {switch} link add port{at} type veth peer name eth0 netns {host}"
            ));
            let address = network.address(at);
            ip(&format!("-n {switch} link set port{at} master {JOINED} up"));
            ip(&format!("-n {host} addr add {address}/24 dev eth0"));
            ip(&format!("-n {host} link set eth0 up"));
            ip(&format!("-n {host} link set lo up"));
        }
        network
    }

    #[allow(clippy::unused_self, reason = "it is an address of this network")]
    pub fn address(&self, host: usize) -> String {
        format!("10.77.0.{}", host + 1)
    }

    /// The same command on a host.
    pub fn on(&self, host: usize, command: &Command) -> Command {
        let mut there = Command::new("nsenter");
        there.arg(format!("--net=/run/netns/{}", self.hosts[host]));
        there.arg("--").arg(command.get_program());
        there.args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => there.env(name, value),
                None => there.env_remove(name),
            };
        }
        if let Some(directory) = command.get_current_dir() {
            there.current_dir(directory);
        }
        there
    }

    /// These hosts reach each other, and none of the others.
    pub fn set_apart(&self, hosts: &[usize]) {
        for host in hosts {
            let switch = &self.switch;
            ip(&format!("-n {switch} link set port{host} master {APART}"));
        }
    }

    pub fn rejoin(&self) {
        for host in 0..self.hosts.len() {
            let switch = &self.switch;
            ip(&format!("-n {switch} link set port{host} master {JOINED}"));
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in self.hosts.iter().chain([&self.switch]) {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}
