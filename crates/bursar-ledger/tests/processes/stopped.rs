//! A stopped process that has the lock keeps nobody from giving up: deadlines are kept, dropping never waits, and what could
//! not be done is done later by whoever has the lock next (L4, L6).

use crate::peer::{Folder, Peer, ROLE, TOTAL, myself, subject};
use crate::trial;
use bursar_core::{Account, Bytes, Error};
use bursar_ledger::book::Book;
use bursar_ledger::format::{WordsSnapshot, header};
use bursar_ledger::{Ledger, LedgerError, Priority, RemoteError, RemoteRequest, Reservation, ReserveOptions};
use libtest_mimic::Trial;
use rustix::process::Signal;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("l4_a_deadline_passes_without_a_trace_while_the_lock_is_stuck", deadline_without_a_trace),
        trial("l4_a_short_deadline_is_kept_while_the_lock_is_stuck", short_deadline),
        trial("l4_nothing_of_a_request_at_once_waits_while_the_lock_is_stuck", at_once),
        trial("l4_a_future_waits_for_nobody_while_the_lock_is_stuck", futures),
        trial("l6_dropping_everything_waits_for_nobody_and_gives_all_back", dropping_everything),
        trial("l6_dropping_a_call_waits_for_nobody_and_withdraws_it", dropping_a_call),
        trial("l6_what_is_held_stays_charged_when_the_ledger_is_dropped_stuck", dropping_what_is_held),
        trial("l6_opening_while_the_lock_is_stuck_fails_once", opening),
        trial("l4_a_storm_of_stops_leaves_nothing_behind", storm),
        trial("l6_any_number_of_releases_is_digested", any_number_of_releases),
        trial("l6_any_number_of_figures_is_cut", any_number_of_figures),
    ]
}

/// Longer than anything takes that waits for nobody, and shorter than the timeout for a stuck lock.
const SOON: Duration = Duration::from_secs(2);

/// A process that is stopped with the lock of the ledger in `folder`.
struct Stopped {
    peer: Peer,
    folder: Folder,
}

impl Stopped {
    /// Starts a process that has the ledger open and holds nothing, and stops it with the lock.
    fn new() -> (Self, Ledger) {
        let folder = Folder::new();
        let peer = Peer::new(&folder);
        let ledger = folder.open();
        (Self { peer, folder }, ledger)
    }

    fn stop(&self) {
        self.peer.signal(Signal::STOP);
        let file = std::fs::OpenOptions::new().write(true).open(self.folder.file()).unwrap();
        let taken = Book::<WordsSnapshot>::lock_word(1 << 20, 0);
        file.write_all_at(&taken.to_le_bytes(), header::LOCK as u64 * 8).unwrap();
    }

    fn is_named_by(&self, error: &str) -> bool {
        error.contains(&format!("(pid {}) has had the lock", self.peer.child.id()))
    }

    /// Kills the process, so that the lock becomes available.
    fn end(self) -> Folder {
        self.peer.kill();
        self.folder
    }
}

fn soon<T>(act: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let reply = act();
    assert!(began.elapsed() < SOON, "it took {:?}", began.elapsed());
    reply
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(20), "{what} never came");
        std::thread::yield_now();
    }
}

fn deadline_without_a_trace() {
    let (stopped, ledger) = Stopped::new();
    let most = ledger.reserve(Bytes(600)).unwrap();
    let waits = ledger.clone();
    let began = Instant::now();
    let waits = std::thread::spawn(move || {
        waits.reserve_within(Bytes(500), Duration::from_millis(1500), Priority::HIGH).map(|reserved| reserved.bytes())
    });
    until("somebody who waits", || ledger.reading().unwrap().waiting.len() == 1);
    stopped.stop();
    // Room for the other request, to be granted as soon as somebody has the lock.
    soon(|| drop(most));
    let refused = waits.join().unwrap().unwrap_err().to_string();
    assert!(began.elapsed() < Duration::from_millis(1500) + SOON, "{:?}", began.elapsed());
    assert!(stopped.is_named_by(&refused), "{refused}");
    let _folder = stopped.end();
    assert_eq!(ledger.available().unwrap(), TOTAL);
    let reading = ledger.reading().unwrap();
    assert_eq!((reading.undrawn, reading.waiting.len()), (Bytes::ZERO, 0));
}

fn short_deadline() {
    let (stopped, ledger) = Stopped::new();
    stopped.stop();
    let refused = soon(|| ledger.reserve_within(Bytes(1), Duration::from_millis(200), Priority::HIGH)).unwrap_err();
    assert!(stopped.is_named_by(&refused.to_string()), "{refused}");
}

/// A request that may not wait is refused soon, and so is one of a process that has yet to open the ledger.
fn at_once() {
    let (stopped, ledger) = Stopped::new();
    stopped.stop();
    let future = soon(|| ledger.reserve_async_for("batch", Bytes(1), ReserveOptions::new()));
    let refused = soon(|| future.now()).unwrap_err();
    assert!(stopped.is_named_by(&refused.to_string()), "{refused}");
    drop(ledger);
    let (folder, patience) = (stopped.folder.path(), Duration::from_millis(10));
    let refused = soon(|| Ledger::open_within(folder, &subject(), patience)).unwrap_err();
    assert!(stopped.is_named_by(&refused.to_string()), "{refused}");
    let folder = stopped.end();
    let ledger = Ledger::open_within(folder.path(), &subject(), patience).unwrap();
    assert_eq!((ledger.available().unwrap(), ledger.reading().unwrap().processes.len()), (TOTAL, 1));
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

fn futures() {
    let (stopped, ledger) = Stopped::new();
    let all = ledger.reserve(TOTAL).unwrap();
    let woken = Arc::new(Flag::default());
    let waker = Waker::from(Arc::clone(&woken));
    let poll = |future: Pin<&mut bursar_ledger::ReserveFuture>| future.poll(&mut Context::from_waker(&waker));
    let mut joined = Box::pin(ledger.reserve_async(Bytes(700), Priority::HIGH));
    assert!(poll(joined.as_mut()).is_pending());
    stopped.stop();
    let mut late = Box::pin(ledger.reserve_async(Bytes(500), Priority::NORMAL));
    assert!(soon(|| poll(late.as_mut())).is_pending(), "it tries again later");
    soon(|| drop((joined, all)));
    woken.0.store(false, SeqCst);
    let _folder = stopped.end();
    let began = Instant::now();
    let reserved = loop {
        until("a wake", || woken.0.swap(false, SeqCst));
        assert!(began.elapsed() < Duration::from_secs(20), "it was never granted");
        if let Poll::Ready(reserved) = poll(late.as_mut()) {
            break reserved.unwrap();
        }
    };
    assert_eq!((reserved.bytes(), ledger.available().unwrap()), (Bytes(500), Bytes(500)));
}

fn dropping_everything() {
    let (stopped, ledger) = Stopped::new();
    let account = ledger.account().unwrap();
    account.charge(Bytes(100)).unwrap();
    let reservation = ledger.reserve(Bytes(300)).unwrap();
    stopped.stop();
    account.release(Bytes(100));
    soon(|| drop((reservation, account, ledger)));
    let folder = stopped.end();
    let ledger = folder.open();
    assert_eq!(ledger.available().unwrap(), TOTAL);
    assert_eq!(ledger.reading().unwrap().processes.len(), 1, "what was dropped is not there any more");
}

/// Whoever meets a request learns that it is withdrawn while the lock is stuck, and the next request is made once it is not.
fn dropping_a_call() {
    let (stopped, ledger) = Stopped::new();
    let ((tell_began, began), (tell_end, ends), (look, may_look)) = (channel(), channel(), channel());
    let (asked, may_look) = (ledger.clone(), Mutex::new(may_look));
    let listener = ledger.on_request(move |_| {
        tell_began.send(()).unwrap();
        // Looking takes the lock where that is free.
        may_look.lock().unwrap().recv().unwrap();
        until("the withdrawal", || asked.is_request_withdrawn());
        tell_end.send(()).unwrap();
        Err(Error::InvalidValue { what: "nobody wants it any more" })
    });
    let ask = || ledger.ask(std::process::id(), RemoteRequest::Wake { patience: SOON });
    let call = ask().unwrap();
    began.recv_timeout(SOON).unwrap();
    stopped.stop();
    soon(|| drop(call));
    look.send(()).unwrap();
    ends.recv_timeout(SOON).expect("it is told while the lock is stuck");
    let _folder = stopped.end();
    let next = loop {
        match ask() {
            Err(RemoteError::Busy { .. }) => std::thread::yield_now(),
            asked => break asked.unwrap(),
        }
    };
    began.recv_timeout(SOON).expect("the next is taken");
    drop(next);
    look.send(()).unwrap();
    ends.recv_timeout(SOON).expect("and withdrawn too");
    drop(listener);
}

fn dropping_what_is_held() {
    let (stopped, ledger) = Stopped::new();
    let account = ledger.account().unwrap();
    account.charge(Bytes(70)).unwrap();
    let reservation = ledger.reserve(Bytes(300)).unwrap();
    stopped.stop();
    soon(|| drop((reservation, account, ledger)));
    let folder = stopped.end();
    assert_eq!(folder.open().available().unwrap(), Bytes(930), "nobody said that it was given back");
}

fn opening() {
    let (stopped, ledger) = Stopped::new();
    drop(ledger);
    stopped.stop();
    let began = Instant::now();
    let refused = Ledger::open_in(stopped.folder.path(), &subject()).unwrap_err();
    assert!(matches!(refused, LedgerError::Stuck { .. }), "{refused}");
    assert!(began.elapsed() < Duration::from_secs(5) + SOON, "{:?}", began.elapsed());
    assert_eq!(stopped.end().open().available().unwrap(), TOTAL);
}

/// One of the processes in the storm: takes and gives up in every way until it is told to end, and then keeps the
/// ledger open with nothing of it.
pub(crate) fn play() {
    let folder = std::path::PathBuf::from(std::env::var_os("FOLDER").unwrap());
    let ledger = Ledger::open_in(&folder, &subject()).unwrap();
    let (ends, mut commands) = (AtomicBool::new(false), std::io::stdin().lines());
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (ledger, ends) = (&ledger, &ends);
            scope.spawn(move || {
                (thread..).take_while(|_| !ends.load(SeqCst)).for_each(|turn| take_and_give_up(ledger, turn))
            });
        }
        let _ = commands.next();
        ends.store(true, SeqCst);
    });
    #[allow(clippy::print_stdout, reason = "this is how it replies")]
    {
        println!("done");
    }
    let _ = commands.next();
}

fn take_and_give_up(ledger: &Ledger, turn: u64) {
    let bytes = Bytes(turn.wrapping_mul(7919) % 400 + 1);
    match turn % 4 {
        0 => drop(ledger.reserve(bytes)),
        1 => drop(ledger.reserve_within(bytes, Duration::from_millis(turn % 5), Priority(turn as u8))),
        2 => {
            let mut future = Box::pin(ledger.reserve_async(bytes, Priority(turn as u8)));
            drop(future.as_mut().poll(&mut Context::from_waker(Waker::noop())));
        }
        _ => {
            let account = ledger.account().unwrap();
            if account.charge(bytes).is_ok() {
                account.release(bytes);
            }
        }
    }
}

/// Processes are stopped wherever they are, with the lock or without, for longer than others wait.
fn storm() {
    let length = std::env::var("BURSAR_LEDGER_TORTURE_MS").ok().and_then(|length| length.parse().ok()).unwrap_or(1500);
    let folder = Folder::new();
    let ledger = folder.open();
    let start = |_| {
        let mut command = myself();
        command.env(ROLE, "storm").env("FOLDER", folder.path());
        Peer::commanded(command)
    };
    let mut peers: Vec<Peer> = (0..4).map(start).collect();
    let began = Instant::now();
    for turn in 0.. {
        if began.elapsed() > Duration::from_millis(length) {
            break;
        }
        let peer = &peers[turn % peers.len()];
        peer.signal(Signal::STOP);
        std::thread::sleep(Duration::from_millis(130));
        peer.signal(Signal::CONT);
        std::thread::sleep(Duration::from_millis(3));
    }
    for peer in &mut peers {
        assert_eq!(peer.command("end"), "done");
    }
    let reading = ledger.reading().unwrap();
    assert_eq!((reading.held, reading.undrawn, reading.waiting.len()), (Bytes::ZERO, Bytes::ZERO, 0), "{reading:?}");
    assert_eq!(reading.processes.len(), 5, "all of them live");
    assert_eq!(ledger.reserve(TOTAL).unwrap().bytes(), TOTAL);
}

fn any_number_of_releases() {
    let (stopped, ledger) = Stopped::new();
    let open = |at: usize| ledger.tenant(&at.to_string()).unwrap().account().unwrap();
    let accounts: Vec<_> = (0..300).map(open).collect();
    accounts.iter().for_each(|account| account.charge(Bytes(3)).unwrap());
    // Somebody waits, so nobody may keep credit: every release is a note.
    let mut waits = Box::pin(ledger.reserve_async(TOTAL, Priority::NORMAL));
    assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    stopped.stop();
    soon(|| accounts.iter().for_each(|account| account.release(Bytes(3))));
    let reading = Ledger::inspect(&stopped.folder.file()).unwrap();
    // The reading is that of the ledger once somebody has the lock: all was released, and the request that waits is
    // granted.
    assert_eq!((reading.held, reading.undrawn, reading.waiting.len()), (Bytes::ZERO, TOTAL, 0));
    let folder = stopped.end();
    drop((waits, accounts, ledger));
    assert_eq!(folder.open().available().unwrap(), TOTAL);
}

/// Each giver releases what only its child holds: the excess is cut off, however many do so.
fn any_number_of_figures() {
    let folder = Folder::new();
    let ledger = folder.open();
    let mut kept = Vec::new();
    for _ in 0..200 {
        let delegation = ledger.reserve(Bytes(5)).unwrap().delegate().unwrap();
        let child = Reservation::from_token(&delegation.token()).unwrap();
        child.charge(Bytes(3)).unwrap();
        let giver = delegation.end();
        giver.release(Bytes(3));
        kept.push((giver, child));
    }
    let reading = ledger.reading().unwrap();
    assert_eq!((reading.held, reading.undrawn), (Bytes(600), Bytes(400)));
    for (_, child) in &kept {
        child.release(Bytes(3));
    }
    drop((kept, ledger));
    assert_eq!(folder.open().available().unwrap(), TOTAL);
}
