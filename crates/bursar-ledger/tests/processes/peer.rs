//! Another process, which executes commands that it reads line by line.

use bursar_core::{Account, Bytes, DeviceUuid};
use bursar_ledger::{
    Delegation, Ledger, LedgerAccount, LedgerError, Priority, ProcessUsage, Reclaimer, Reservation, Subject, Tenant,
    UsagePublisher,
};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, setrlimit};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The variable that makes this program one of the other processes.
pub(crate) const ROLE: &str = "BURSAR_LEDGER_TEST_ROLE";
pub(crate) const TOTAL: Bytes = Bytes(1000);

/// A folder of its own for each test, gone afterwards.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("bursar-ledger-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.0.join(subject().file_name())
    }

    pub(crate) fn open(&self) -> Ledger {
        Ledger::open_in(&self.0, &subject()).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn subject() -> Subject {
    Subject { uuid: DeviceUuid([0x5a; 16]), name: "Test".into(), total: TOTAL }
}

pub(crate) fn myself() -> Command {
    Command::new(std::env::current_exe().unwrap())
}

/// Another process. It is killed when this is dropped.
pub(crate) struct Peer {
    pub(crate) child: Child,
    commands: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts a process and has it open the ledger in `folder`.
    pub(crate) fn new(folder: &Folder) -> Self {
        let mut peer = Self::idle();
        assert_eq!(peer.command(&format!("open {}", folder.path().display())), "ok");
        peer
    }

    /// Starts a process that has opened nothing.
    pub(crate) fn idle() -> Self {
        Self::started(myself())
    }

    pub(crate) fn started(mut command: Command) -> Self {
        command.env(ROLE, "puppet");
        Self::commanded(command)
    }

    /// Starts a process by a command whose role is set already.
    pub(crate) fn commanded(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (commands, replies) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, commands, replies }
    }

    /// Sends a command without waiting for the reply.
    pub(crate) fn send(&mut self, command: &str) {
        writeln!(self.commands, "{command}").unwrap();
    }

    pub(crate) fn reply(&mut self) -> String {
        let mut line = String::new();
        self.replies.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    pub(crate) fn command(&mut self, command: &str) -> String {
        self.send(command);
        self.reply()
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Default)]
struct Handles {
    ledger: Option<Ledger>,
    tenant: Option<Tenant>,
    account: Option<LedgerAccount>,
    reservations: Vec<Reservation>,
    delegations: Vec<Delegation>,
    reclaimer: Option<Reclaimer>,
    panics: Option<Reclaimer>,
    publishers: Vec<UsagePublisher>,
}

/// The main function of the other process: executes commands until there are no more.
pub(crate) fn play() {
    let mut handles = Handles::default();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let reply = execute(&mut handles, &words).unwrap_or_else(|error| format!("error {error}"));
        #[allow(clippy::print_stdout, reason = "this is how it replies")]
        {
            println!("{reply}");
        }
    }
}

/// Returns the limit under which a process can open `left` more files: the kernel limits the number that a descriptor
/// gets, so the free numbers between the open ones count too.
fn limit_that_leaves(left: u64) -> std::io::Result<u64> {
    let names = std::fs::read_dir("/proc/self/fd")?.map(|entry| Ok(entry?.file_name()));
    let mut listed = names.collect::<std::io::Result<Vec<_>>>()?;
    // The folder that was listed is closed by now.
    listed.retain(|name| Path::new("/proc/self/fd").join(name).exists());
    let open: Vec<u64> = listed.iter().map(|name| name.to_str().unwrap().parse().unwrap()).collect();
    let free = (0..).filter(|number| !open.contains(number));
    Ok(free.take(left as usize + 1).last().unwrap_or(0))
}

fn execute(handles: &mut Handles, words: &[&str]) -> Result<String, Box<dyn std::error::Error>> {
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    let bytes = Bytes(number(1));
    if words[0] == "open" {
        let ledger = Ledger::open_in(Path::new(words[1]), &subject())?;
        handles.tenant = Some(ledger.tenant("")?);
        handles.account = Some(ledger.account()?);
        handles.ledger = Some(ledger);
        return Ok("ok".into());
    }
    if words[0] == "files" {
        let most = getrlimit(Resource::Nofile).maximum;
        let limit_descriptors = |current| setrlimit(Resource::Nofile, Rlimit { current, maximum: most });
        // Looking for what is open needs a descriptor too, whatever the limit was until now.
        limit_descriptors(most)?;
        if words[1] != "many" {
            limit_descriptors(Some(limit_that_leaves(number(1))?))?;
        }
        return Ok("ok".into());
    }
    if words[0] == "draw" {
        handles.reservations.push(Reservation::from_token(words[1])?);
        return Ok("ok".into());
    }
    let (ledger, account) = (handles.ledger.as_ref().unwrap(), handles.account.as_ref().unwrap());
    let tenant = handles.tenant.as_ref().unwrap();
    match words[0] {
        "tenant" => {
            let tenant = ledger.tenant(words[1])?;
            handles.account = Some(tenant.account()?);
            handles.tenant = Some(tenant);
        }
        "open-accounts" => {
            for _ in 0..number(1) {
                match ledger.account() {
                    Ok(_) | Err(LedgerError::Cleared { .. }) => (),
                    Err(error) => return Err(error.into()),
                }
            }
        }
        "charge" => account.charge(bytes)?,
        "release" => account.release(bytes),
        "reserve" => handles.reservations.push(tenant.reserve(bytes)?),
        "within" => {
            let (deadline, priority) = (Duration::from_millis(number(2)), Priority(number(3) as u8));
            handles.reservations.push(tenant.reserve_within(bytes, deadline, priority)?);
        }
        "drop" => drop(handles.reservations.pop()),
        "draw-charge" => handles.reservations.last().ok_or("nothing is reserved")?.charge(bytes)?,
        "draw-release" => handles.reservations.last().ok_or("nothing is reserved")?.release(bytes),
        "delegate" => {
            let delegation = handles.reservations.pop().ok_or("nothing is reserved")?.delegate()?;
            let token = delegation.token();
            handles.delegations.push(delegation);
            return Ok(token);
        }
        "panic-when-asked" => handles.panics = Some(ledger.on_reclaim(|_| panic!("as it was told"))),
        "give-back-when-asked" => {
            let held = Arc::new(Mutex::new((account.clone(), bytes)));
            handles.reclaimer = Some(ledger.on_reclaim(move |wanted| {
                let mut held = held.lock().unwrap();
                let given = wanted.min(held.1);
                held.1 = held.1.saturating_sub(given);
                held.0.release(given);
                given
            }));
        }
        "publish" => {
            let usage = ProcessUsage { live: Some(bytes), ..ProcessUsage::default() };
            let publisher = ledger.publish(move || usage.clone());
            publisher.publish_now();
            handles.publishers.push(publisher);
        }
        "close" => {
            // What is held stays charged, and with it the place of the process.
            *handles = Handles { publishers: std::mem::take(&mut handles.publishers), ..Handles::default() };
        }
        "held" => return Ok(account.held().get().to_string()),
        other => return Err(format!("no order {other}").into()),
    }
    Ok("ok".into())
}
