//! The socket of a connection, perhaps encrypted. It is read and written until a moment, however little each time brings.

use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use rustls::{ClientConnection, StreamOwned};
use socket2::{Domain, SockAddr, Socket, Type};

use super::address::{Address, Encryption, Member};
use super::failure::{NO_TLS, of_io, unreadable};
use super::tls;
use crate::cluster::address::look_up;
use crate::cluster::engine::{Answer, Failure, Kind};

pub(super) struct Timed {
    pub(super) socket: Socket,
    pub(super) until: Instant,
}

impl Timed {
    fn limited<T>(&self, mut once: impl FnMut(&mut &Socket) -> io::Result<T>) -> io::Result<T> {
        loop {
            let left = Some(left(self.until)?);
            self.socket.set_read_timeout(left)?;
            self.socket.set_write_timeout(left)?;
            let done = once(&mut &self.socket);
            let kind = done.as_ref().err().map(io::Error::kind);
            if !kind.is_some_and(|kind| [Interrupted, WouldBlock].contains(&kind)) {
                return done;
            }
        }
    }
}

impl Read for Timed {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.limited(|socket| socket.read(bytes))
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.limited(|socket| socket.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(super) trait Channel: Read + Write + Send {
    fn timed(&mut self) -> &mut Timed;
}

impl Channel for Timed {
    fn timed(&mut self) -> &mut Timed {
        self
    }
}

impl Channel for StreamOwned<ClientConnection, Timed> {
    fn timed(&mut self) -> &mut Timed {
        &mut self.sock
    }
}

/// Connects within this time, and then encrypts within the same.
pub(super) fn open(
    address: &Address,
    member: &Member,
    within: Duration,
) -> Answer<Box<dyn Channel>> {
    let failed = |error| of_io(&error, false);
    let mut timed = Timed {
        socket: connect(member, Instant::now() + within).map_err(failed)?,
        until: Instant::now() + within,
    };
    if member.is_socket() || address.encryption == Encryption::Disable {
        return Ok(Box::new(timed));
    }
    let mut request = BytesMut::new();
    frontend::ssl_request(&mut request);
    timed.write_all(&request).map_err(failed)?;
    let mut answer = [0];
    timed.read_exact(&mut answer).map_err(failed)?;
    match answer {
        [b'S'] => {}
        [b'N'] if address.encryption == Encryption::Prefer => return Ok(Box::new(timed)),
        [b'N'] => return Err(Failure::new(Kind::Untrusted, NO_TLS)),
        _ => return Err(unreadable()),
    }
    let mut tls = tls::begin(address, &member.host.name)?;
    while tls.is_handshaking() {
        tls.complete_io(&mut timed).map_err(failed)?;
    }
    Ok(Box::new(StreamOwned::new(tls, timed)))
}

/// The time until a moment; an error if it has come.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    (!left.is_zero())
        .then_some(left)
        .ok_or_else(|| TimedOut.into())
}

fn connect(member: &Member, until: Instant) -> io::Result<Socket> {
    if member.is_socket() {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.connect_timeout(&SockAddr::unix(&member.text)?, left(until)?)?;
        return Ok(socket);
    }
    let addresses = look_up(&member.text, left(until)?)?;
    let mut last = io::Error::other("no such host");
    for (at, address) in addresses.iter().enumerate() {
        // One that does not answer leaves the others their share.
        let to_try = u32::try_from(addresses.len() - at).unwrap_or(u32::MAX);
        let within = (left(until)? / to_try).max(Duration::from_millis(1));
        let socket = Socket::new(Domain::for_address(*address), Type::STREAM, None)?;
        match socket.connect_timeout(&SockAddr::from(*address), within) {
            Ok(()) => {
                socket.set_tcp_nodelay(true)?;
                return Ok(socket);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}
