//! A connection to one server: the frontend/backend protocol, version 3.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use fallible_iterator::FallibleIterator as _;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::backend::{ErrorResponseBody, Message};
use postgres_protocol::message::frontend;

use super::address::{Address, Member};
use super::channel::{self, Channel};
use super::failure::{no_password, of_error, of_io, other_sign_in, unreadable, wrong_password};
use crate::cluster::engine::{Answer, Failure};

/// The largest message: an answer with many records.
const MAX_MESSAGE: u32 = 64 * 1024 * 1024;

/// A session with one server. It is dropped after any failure.
pub(super) struct Connection {
    channel: Box<dyn Channel>,
    unread: BytesMut,
    /// What the server has told without being asked.
    notices: VecDeque<String>,
    user: String,
    /// The process that serves it, as the server says; behind a pooler it is another one.
    pub(super) process: i32,
    /// Of the server.
    pub(super) version: String,
}

impl Connection {
    /// Connects within this time, and then encrypts and signs in within the same.
    pub(super) fn open(address: &Address, member: &Member, within: Duration) -> Answer<Self> {
        let mut connection = Self {
            channel: channel::open(address, member, within)?,
            unread: BytesMut::new(),
            notices: VecDeque::new(),
            user: address.user.clone(),
            process: 0,
            version: String::new(),
        };
        connection.sign_in(address, member)?;
        Ok(connection)
    }

    fn sign_in(&mut self, address: &Address, member: &Member) -> Answer<()> {
        let all = [
            ("user", &*address.user),
            ("database", &address.database),
            ("client_encoding", "UTF8"),
            ("application_name", "onehold"),
        ];
        self.send(|buffer| frontend::startup_message(all, buffer))?;
        let password = || address.password(member).ok_or_else(|| no_password(address));
        let mut scram = None;
        loop {
            match self.receive(false)? {
                Message::AuthenticationCleartextPassword => {
                    let password = password()?;
                    self.send(|buffer| frontend::password_message(password.as_bytes(), buffer))?;
                }
                Message::AuthenticationMd5Password(body) => {
                    let (user, password) = (address.user.as_bytes(), password()?);
                    let hash = md5_hash(user, password.as_bytes(), body.salt());
                    self.send(|buffer| frontend::password_message(hash.as_bytes(), buffer))?;
                }
                Message::AuthenticationSasl(body) => {
                    let mut known = body.mechanisms();
                    if !known.any(|one| Ok(one == SCRAM_SHA_256)).unwrap_or(false) {
                        return Err(other_sign_in());
                    }
                    let binding = ChannelBinding::unsupported();
                    let begun = scram.insert(ScramSha256::new(password()?.as_bytes(), binding));
                    let first = begun.message();
                    self.send(|buffer| {
                        frontend::sasl_initial_response(SCRAM_SHA_256, first, buffer)
                    })?;
                }
                Message::AuthenticationSaslContinue(body) => {
                    let begun = scram.as_mut().ok_or_else(unreadable)?;
                    begun.update(body.data()).map_err(wrong_password)?;
                    let next = begun.message();
                    self.send(|buffer| frontend::sasl_response(next, buffer))?;
                }
                Message::AuthenticationSaslFinal(body) => {
                    let begun = scram.as_mut().ok_or_else(unreadable)?;
                    // So the server has shown that it knows the password as well.
                    begun.finish(body.data()).map_err(wrong_password)?;
                }
                Message::BackendKeyData(body) => self.process = body.process_id(),
                Message::ParameterStatus(body) => {
                    if body.name().is_ok_and(|name| name == "server_version") {
                        body.value()
                            .unwrap_or_default()
                            .clone_into(&mut self.version);
                    }
                }
                Message::ErrorResponse(body) => return Err(self.failure(&body)),
                Message::AuthenticationOk | Message::NoticeResponse(_) => {}
                Message::ReadyForQuery(_) => return Ok(()),
                _ => return Err(other_sign_in()),
            }
        }
    }

    /// Does what statements say, in one transaction, and returns the first value of the last row.
    pub(super) fn ask(&mut self, statements: &str, timeout: Duration) -> Answer<Option<String>> {
        self.channel.timed().until = Instant::now() + timeout;
        self.send(|buffer| frontend::query(statements, buffer))?;
        let mut found = None;
        loop {
            match self.receive(true)? {
                Message::DataRow(body) => {
                    let first = body.ranges().next().ok().flatten().flatten();
                    let value = first.and_then(|range| body.buffer().get(range));
                    found = value.map(|value| String::from_utf8_lossy(value).into_owned());
                }
                Message::ErrorResponse(body) => return Err(self.failure(&body)),
                Message::ReadyForQuery(_) => break,
                _ => {}
            }
        }
        Ok(found)
    }

    /// What the server tells next, within this time. `None`: nothing.
    pub(super) fn notice(&mut self, within: Duration) -> Answer<Option<String>> {
        let until = Instant::now() + within;
        self.channel.timed().until = until;
        while self.notices.is_empty() {
            match self.receive(false) {
                Ok(Message::ErrorResponse(body)) => return Err(self.failure(&body)),
                Ok(_) => {}
                Err(_) if Instant::now() >= until => break,
                Err(failure) => return Err(failure),
            }
        }
        Ok(self.notices.pop_front())
    }

    /// Whether the server has neither closed it nor said anything since.
    pub(super) fn is_silent(&mut self) -> bool {
        let socket = &self.channel.timed().socket;
        let said = socket.set_nonblocking(true).and_then(|()| {
            let said = socket.peek(&mut [MaybeUninit::uninit()]);
            socket.set_nonblocking(false).and(said)
        });
        said.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    fn send(&mut self, message: impl FnOnce(&mut BytesMut) -> io::Result<()>) -> Answer<()> {
        let mut buffer = BytesMut::new();
        message(&mut buffer)
            .and_then(|()| self.channel.write_all(&buffer))
            .and_then(|()| self.channel.flush())
            .map_err(|error| of_io(&error, true))
    }

    /// The next message. A notification is kept for [`notice`](Self::notice), whose wait it ends.
    fn receive(&mut self, was_sent: bool) -> Answer<Message> {
        loop {
            // Behind its kind; what is parsed takes so much memory at once.
            let length = self.unread.get(1..5);
            let length = length.and_then(|length| length.try_into().ok());
            if length.is_some_and(|length| u32::from_be_bytes(length) > MAX_MESSAGE) {
                return Err(unreadable());
            }
            match Message::parse(&mut self.unread) {
                Ok(Some(Message::NotificationResponse(body))) => {
                    let payload = body.message().unwrap_or_default();
                    self.notices.push_back(payload.to_owned());
                    return Ok(Message::NoData);
                }
                Ok(Some(message)) => return Ok(message),
                Ok(None) => self.read_more().map_err(|error| of_io(&error, was_sent))?,
                Err(_) => return Err(unreadable()),
            }
        }
    }

    fn read_more(&mut self) -> io::Result<()> {
        let mut bytes = [0; 8192];
        let length = self.channel.read(&mut bytes)?;
        let read = bytes.get(..length).filter(|read| !read.is_empty());
        self.unread
            .extend_from_slice(read.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn failure(&self, body: &ErrorResponseBody) -> Failure {
        let (mut state, mut message) = (String::new(), String::new());
        let _ = body.fields().for_each(|field| {
            let value = String::from_utf8_lossy(field.value_bytes());
            match field.type_() {
                b'C' => state.push_str(&value),
                b'M' => message.push_str(&value),
                _ => {}
            }
            Ok(())
        });
        of_error(&state, &message, &self.user)
    }
}
