use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::cluster::{Cluster, On};

/// What becomes of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is done, and the answer is lost.
    SwallowAnswer,
    /// It does not arrive.
    Drop,
    /// It arrives after so many milliseconds.
    Delay(u64),
}

/// Stands between onehold and one member.
pub struct Proxy {
    pub endpoint: String,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    upstream: String,
    paths: Mutex<Vec<String>>,
    count: AtomicUsize,
    fates: Mutex<HashMap<usize, Fate>>,
    /// How long the requests with this path take, in milliseconds.
    delay: Mutex<Option<(&'static str, u64)>>,
    is_cut: AtomicBool,
    is_over: AtomicBool,
    connections: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    pub fn to(upstream: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared {
            upstream: upstream.to_owned(),
            ..Shared::default()
        });
        let for_all = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if for_all.is_over.load(Ordering::SeqCst) {
                    return;
                }
                let shared = Arc::clone(&for_all);
                std::thread::spawn(move || serve(&shared, &client));
            }
        });
        Self { endpoint, shared }
    }

    /// The paths of all requests so far.
    pub fn paths(&self) -> Vec<String> {
        self.shared.paths.lock().unwrap().clone()
    }

    pub fn forget(&self) {
        self.shared.paths.lock().unwrap().clear();
        self.shared.count.store(0, Ordering::SeqCst);
    }

    /// The request with this number, from 0 on, meets this fate.
    pub fn plan(&self, number: usize, fate: Fate) {
        let mut fates = self.shared.fates.lock().unwrap();
        fates.clear();
        fates.insert(number, fate);
        drop(fates);
        self.forget();
    }

    /// Each request with this path takes so long, in milliseconds.
    pub fn delay(&self, path: &'static str, milliseconds: u64) {
        *self.shared.delay.lock().unwrap() = Some((path, milliseconds));
    }

    /// Lets something happen that is not counted.
    pub fn unplan_for<T>(&self, act: impl FnOnce() -> T) -> T {
        let value = act();
        self.forget();
        value
    }

    pub fn unplan(&self) {
        self.shared.fates.lock().unwrap().clear();
    }

    /// Cuts the network: nothing is answered any more, and nothing arrives.
    pub fn cut(&self) {
        self.shared.is_cut.store(true, Ordering::SeqCst);
    }

    pub fn mend(&self) {
        self.shared.is_cut.store(false, Ordering::SeqCst);
        // What was in flight is lost.
        for connection in self.shared.connections.lock().unwrap().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn wait_until_mended(&self) {
        while self.is_cut.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Its threads end.
impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        self.mend();
        let _ = TcpStream::connect(&self.endpoint);
    }
}

fn serve(shared: &Arc<Shared>, client: &TcpStream) -> Option<()> {
    client.set_nodelay(true).ok()?;
    shared
        .connections
        .lock()
        .unwrap()
        .push(client.try_clone().ok()?);
    let upstream = TcpStream::connect(&shared.upstream).ok()?;
    upstream.set_nodelay(true).ok()?;
    let swallows = Arc::new(AtomicBool::new(false));
    let (mut from, mut to) = (upstream.try_clone().ok()?, client.try_clone().ok()?);
    let (for_answers, all) = (Arc::clone(&swallows), Arc::clone(shared));
    std::thread::spawn(move || {
        let mut bytes = [0; 16 * 1024];
        while let Ok(length @ 1..) = from.read(&mut bytes) {
            if for_answers.load(Ordering::SeqCst) {
                break;
            }
            all.wait_until_mended();
            if to.write_all(&bytes[..length]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    });
    let mut upstream = upstream;
    let mut requests = BufReader::new(client.try_clone().ok()?);
    loop {
        let mut head = String::new();
        let mut length = 0;
        loop {
            let mut line = String::new();
            if requests.read_line(&mut line).ok()? == 0 {
                let _ = upstream.shutdown(Shutdown::Both);
                return None;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            head.push_str(&line);
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        requests.read_exact(&mut body).ok()?;
        let path = head
            .split_whitespace()
            .nth(1)
            .unwrap_or_default()
            .to_owned();
        let number = shared.count.fetch_add(1, Ordering::SeqCst);
        let delay = *shared.delay.lock().unwrap();
        let delay = delay.filter(|(slow, _)| *slow == path);
        shared.paths.lock().unwrap().push(path);
        shared.wait_until_mended();
        if let Some((_, milliseconds)) = delay {
            std::thread::sleep(Duration::from_millis(milliseconds));
        }
        let fate = shared.fates.lock().unwrap().get(&number).copied();
        match fate {
            Some(Fate::Drop) => {
                let _ = client.shutdown(Shutdown::Both);
                let _ = upstream.shutdown(Shutdown::Both);
                return None;
            }
            Some(Fate::SwallowAnswer) => swallows.store(true, Ordering::SeqCst),
            Some(Fate::Delay(milliseconds)) => {
                std::thread::sleep(Duration::from_millis(milliseconds));
            }
            None => {}
        }
        upstream.write_all(head.as_bytes()).ok()?;
        upstream.write_all(&body).ok()?;
    }
}

/// A proxy for each member of a cluster, and the URL of a store that is reached through them.
pub fn proxies_of(cluster: &Cluster, on: &On) -> (Vec<Proxy>, String) {
    let endpoints = cluster.endpoints();
    let proxies: Vec<Proxy> = endpoints.iter().map(|to| Proxy::to(to)).collect();
    let endpoints: Vec<&str> = proxies.iter().map(|proxy| &*proxy.endpoint).collect();
    let url = format!("etcd://{}{}", endpoints.join(","), on.prefix());
    (proxies, url)
}
