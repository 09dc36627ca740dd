//! What onehold-recipes(7) says of NFS.

use crate::harness::machine::{Machine, Plan};

/// Contenders of each client, and increments of each contender.
const CONTENDERS: usize = 4;
const INCREMENTS: usize = 5;

struct Site {
    _server: Machine,
    clients: [Machine; 2],
}

impl Site {
    fn start(port: u16) -> Self {
        let start = |name: &str, number: u8| {
            let mut plan = Plan::new();
            plan.add_segment(port, number);
            if name == "server" {
                plan.add_disk("exported");
            }
            let mut machine = plan.start(name);
            machine.join(&format!("10.0.0.{number}"));
            machine
        };
        let mut server = start("server", 1);
        server.output("mkfs.ext4 -q /dev/vdc && mkdir -p /srv/store && mount /dev/vdc /srv/store");
        server.output("mount -t tmpfs tmpfs /var/lib/nfs && mkdir -p /var/lib/nfs/v4recovery /var/lib/nfs/rpc_pipefs");
        server.output("modprobe nfsd && mount -t nfsd nfsd /proc/fs/nfsd && touch /var/lib/nfs/etab /var/lib/nfs/rmtab");
        server.output(
            "exportfs -o rw,no_root_squash,fsid=0,insecure,no_subtree_check '*:/srv/store'",
        );
        server.output("rpc.mountd -N 2 -N 3 && rpc.nfsd -N 3 -V 4 4");
        let clients = [("a", 2), ("b", 3)].map(|(name, number)| {
            let mut client = start(name, number);
            client.output("hostname $(cut -c1-8 /proc/sys/kernel/random/boot_id)");
            client
                .output("mkdir /tmp/store && modprobe nfs && mount -t nfs4 10.0.0.1:/ /tmp/store");
            client
        });
        Self {
            _server: server,
            clients,
        }
    }
}

#[test]
#[ignore = "starts three machines, for minutes"]
fn two_clients_of_an_nfs_server_exclude_each_other_and_take_over_nothing() {
    let mut site = Site::start(19_049);
    site.clients[0].output("echo 0 > /tmp/store/count");
    let count = "n=$(cat /tmp/store/count); echo $((n + 1)) > /tmp/store/count";
    let work = format!(
        "for i in $(seq {CONTENDERS}); do (for j in $(seq {INCREMENTS}); do \
            onehold run -q -w forever x -- sh -c '{count}' || echo failed; done) & done; wait"
    );
    for client in &mut site.clients {
        client.begin(&work);
    }
    for client in &mut site.clients {
        assert_eq!(client.next(), Err(0));
    }
    let [a, b] = &mut site.clients;
    let counted = b.output("cat /tmp/store/count");
    assert_eq!(counted.trim(), (2 * CONTENDERS * INCREMENTS).to_string());

    // A holder whose machine is gone: as long as nobody breaks its lock, nobody gets it.
    a.output("onehold run x -- sleep 1000 & while onehold check -q x; do sleep 0.1; done");
    let [a, mut b] = site.clients;
    a.cut_power();
    let refused = b.run("onehold run -w 15 x -- true");
    assert_eq!(refused.code, 7, "{refused:?}");
    let broken = b.run("onehold break --yes x");
    assert_eq!(broken.code, 0, "{broken:?}");
    b.output("onehold run x -- true");
}
