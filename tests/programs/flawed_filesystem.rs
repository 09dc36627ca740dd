//! A filesystem in memory (FUSE) that can be broken in two ways: `flawed-filesystem KIND DIRECTORY` mounts it until it
//! is unmounted. `none` has no flaw, `flock` grants every lock of flock(2), `link` lets link(2) replace a file.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyStatfs,
    ReplyWrite, Request, TimeOrNow, WriteFlags,
};

/// The kernel asks again only where it has to: for a name that it is about to make.
const TTL: Duration = Duration::from_hours(1);

#[derive(Clone)]
struct Node {
    attr: FileAttr,
    bytes: Vec<u8>,
    names: BTreeMap<OsString, u64>,
}

struct Flawed {
    kind: String,
    nodes: Mutex<HashMap<u64, Node>>,
}

impl Flawed {
    fn new(kind: &str) -> Self {
        let filesystem = Self {
            kind: kind.to_owned(),
            nodes: Mutex::default(),
        };
        Self::make(&mut filesystem.nodes(), None, FileType::Directory, 0o755);
        filesystem
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<u64, Node>> {
        self.nodes.lock().unwrap()
    }

    fn make(
        nodes: &mut HashMap<u64, Node>,
        place: Option<(u64, &OsStr)>,
        kind: FileType,
        mode: u32,
    ) -> FileAttr {
        let number = nodes.keys().max().map_or(1, |last| last + 1);
        let now = SystemTime::now();
        let attr = FileAttr {
            ino: INodeNo(number),
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            kind,
            perm: u16::try_from(mode & 0o7777).unwrap(),
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        };
        let node = Node {
            attr,
            bytes: Vec::new(),
            names: BTreeMap::new(),
        };
        nodes.insert(number, node);
        if let Some((parent, name)) = place {
            let parent = nodes.get_mut(&parent).unwrap();
            parent.names.insert(name.to_owned(), number);
        }
        attr
    }
}

fn find(nodes: &HashMap<u64, Node>, parent: INodeNo, name: &OsStr) -> Option<FileAttr> {
    let number = nodes.get(&parent.into())?.names.get(name)?;
    Some(nodes.get(number)?.attr)
}

impl Filesystem for Flawed {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        if self.kind == "flock" {
            config
                .add_capabilities(InitFlags::FUSE_FLOCK_LOCKS)
                .unwrap();
        }
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match find(&self.nodes(), parent, name) {
            // As if another machine had just made it.
            Some(attr) if self.kind != "link" => reply.entry(&TTL, &attr, Generation(0)),
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.nodes().get(&ino.into()) {
            Some(node) => reply.attr(&Duration::ZERO, &node.attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut nodes = self.nodes();
        let Some(node) = nodes.get_mut(&ino.into()) else {
            return reply.error(Errno::ENOENT);
        };
        if let Some(mode) = mode {
            node.attr.perm = u16::try_from(mode & 0o7777).unwrap();
        }
        if let Some(size) = size {
            node.bytes.resize(usize::try_from(size).unwrap(), 0);
            node.attr.size = size;
        }
        node.attr.uid = uid.unwrap_or(node.attr.uid);
        node.attr.gid = gid.unwrap_or(node.attr.gid);
        reply.attr(&Duration::ZERO, &node.attr);
    }

    fn mkdir(&self, _: &Request, at: INodeNo, name: &OsStr, mode: u32, _: u32, reply: ReplyEntry) {
        let place = Some((at.into(), name));
        let attr = Self::make(&mut self.nodes(), place, FileType::Directory, mode);
        reply.entry(&TTL, &attr, Generation(0));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut nodes = self.nodes();
        let removed = nodes
            .get_mut(&parent.into())
            .and_then(|node| node.names.remove(name));
        match removed.and_then(|number| nodes.get_mut(&number)) {
            Some(node) => {
                node.attr.nlink -= 1;
                reply.ok();
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let is_full = |nodes: &HashMap<u64, Node>| {
            let number = nodes[&parent.into()].names.get(name);
            number.is_some_and(|number| !nodes[number].names.is_empty())
        };
        if is_full(&self.nodes()) {
            return reply.error(Errno::ENOTEMPTY);
        }
        self.unlink(request, parent, name, reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        other: INodeNo,
        new: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let mut nodes = self.nodes();
        let moved = nodes
            .get_mut(&parent.into())
            .and_then(|node| node.names.remove(name));
        match moved.zip(nodes.get_mut(&other.into())) {
            Some((moved, other)) => {
                other.names.insert(new.to_owned(), moved);
                reply.ok();
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn link(&self, _: &Request, ino: INodeNo, at: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut nodes = self.nodes();
        if self.kind != "link" && find(&nodes, at, name).is_some() {
            return reply.error(Errno::EEXIST);
        }
        let number = ino.into();
        nodes
            .get_mut(&at.into())
            .unwrap()
            .names
            .insert(name.to_owned(), number);
        let node = nodes.get_mut(&number).unwrap();
        node.attr.nlink += 1;
        reply.entry(&TTL, &node.attr, Generation(0));
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let nodes = self.nodes();
        let bytes = &nodes[&ino.into()].bytes;
        let from = usize::try_from(offset).unwrap().min(bytes.len());
        let to = (from + size as usize).min(bytes.len());
        reply.data(&bytes[from..to]);
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut nodes = self.nodes();
        let node = nodes.get_mut(&ino.into()).unwrap();
        let from = usize::try_from(offset).unwrap();
        let to = from + data.len();
        if node.bytes.len() < to {
            node.bytes.resize(to, 0);
        }
        node.bytes[from..to].copy_from_slice(data);
        node.attr.size = node.bytes.len() as u64;
        node.attr.mtime = SystemTime::now();
        reply.written(u32::try_from(data.len()).unwrap());
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let nodes = self.nodes();
        let names = nodes[&ino.into()].names.iter().enumerate();
        for (at, (name, number)) in names.skip(usize::try_from(offset).unwrap()) {
            let kind = nodes[number].attr.kind;
            if reply.add(INodeNo(*number), at as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 4096, 255, 4096);
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let place = Some((parent.into(), name));
        let attr = Self::make(&mut self.nodes(), place, FileType::RegularFile, mode);
        reply.created(
            &TTL,
            &attr,
            Generation(0),
            FileHandle(0),
            FopenFlags::empty(),
        );
    }

    /// Only asked if it manages the locks of flock(2).
    fn setlk(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: LockOwner,
        _: u64,
        _: u64,
        _: i32,
        _: u32,
        _: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }
}

/// Mounts it, and returns once it is unmounted.
pub fn serve(kind: &str, directory: &str) {
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("flawed".to_owned())];
    fuser::mount(Flawed::new(kind), directory, &config).unwrap();
}
