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
    // A session of PostgreSQL begins with a length, which is short.
    let is_postgres = requests.fill_buf().ok()?.first() == Some(&0);
    let mut is_signed_in = false;
    loop {
        let request = if is_postgres {
            next_of_postgres(&mut requests, &mut is_signed_in)
        } else {
            next_of_etcd(&mut requests)
        };
        let Some((path, request)) = request else {
            let _ = upstream.shutdown(Shutdown::Both);
            return None;
        };
        let Some(path) = path else {
            shared.wait_until_mended();
            upstream.write_all(&request).ok()?;
            continue;
        };
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
        upstream.write_all(&request).ok()?;
    }
}

/// A request of HTTP, and its path.
fn next_of_etcd(requests: &mut impl BufRead) -> Option<(Option<String>, Vec<u8>)> {
    let mut head = String::new();
    let mut length = 0;
    loop {
        let mut line = String::new();
        if requests.read_line(&mut line).ok()? == 0 {
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
    let path = head.split_whitespace().nth(1).map(str::to_owned);
    Some((
        path.or_else(|| Some(String::new())),
        [head.into_bytes(), body].concat(),
    ))
}

/// A message to PostgreSQL, and what it asks for, if it asks for something.
fn next_of_postgres(
    requests: &mut impl BufRead,
    is_signed_in: &mut bool,
) -> Option<(Option<String>, Vec<u8>)> {
    const SSL: [u8; 4] = 80_877_103_u32.to_be_bytes();
    let mut head = vec![0; if *is_signed_in { 5 } else { 4 }];
    requests.read_exact(&mut head).ok()?;
    let length = u32::from_be_bytes(head[head.len() - 4..].try_into().unwrap());
    let mut body = vec![0; length as usize - 4];
    requests.read_exact(&mut body).ok()?;
    *is_signed_in |= body != SSL;
    let text = String::from_utf8_lossy(&body).into_owned();
    let asks = ["keep", "grant", "revoke", "wait", "reads", "left", "then"];
    let asked = asks
        .iter()
        .find(|word| text.contains(&format!("\"{word}\":")));
    let path = asked
        .filter(|_| head[0] == b'Q')
        .map(|word| (*word).to_owned());
    Some((path, [head, body].concat()))
}

impl On {
    /// A proxy for each member, and the URL of the store that is reached through them.
    pub fn proxies(&self) -> (Vec<Proxy>, String) {
        let proxies: Vec<Proxy> = self.endpoints().iter().map(|to| Proxy::to(to)).collect();
        let endpoints: Vec<&str> = proxies.iter().map(|proxy| &*proxy.endpoint).collect();
        let url = self.url_at(&endpoints);
        (proxies, url)
    }

    /// The same with one member.
    pub fn behind_one(&self) -> (Proxy, String) {
        let proxy = Proxy::to(&self.endpoints()[0]);
        let url = self.url_at(&[&proxy.endpoint]);
        (proxy, url)
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
