//! The writer that drops lines instead of blocking: full disks, slow readers, torn lines.

use std::{
    io::{self, Write},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::Duration,
};
use tollgate::log::LossyWriter;

/// Longer than any test takes: a test that waits this long has failed.
const LONG: Duration = Duration::from_secs(60);

/// An output that a test opens and closes.
#[derive(Clone, Debug, Default)]
struct Disk(Arc<(Mutex<Content>, Condvar)>);

#[derive(Debug, Default)]
struct Content {
    bytes: Vec<u8>,
    is_blocked: bool,
    /// Bytes until it is full; `None` if it never is.
    room: Option<usize>,
    /// Writes that have begun.
    begun: usize,
}

impl Disk {
    fn change(&self, change: impl FnOnce(&mut Content)) {
        change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.0.lock().unwrap().bytes.clone()).unwrap()
    }

    /// Waits until the thread is inside a write.
    fn wait_for_write(&self, number: usize) {
        let content = self.0.0.lock().unwrap();
        drop(self.0.1.wait_while(content, |content| content.begun < number).unwrap());
    }
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut content = self.0.0.lock().unwrap();
        content.begun += 1;
        self.0.1.notify_all();
        let mut content = self.0.1.wait_while(content, |content| content.is_blocked).unwrap();
        let taken = content.room.map_or(bytes.len(), |room| room.min(bytes.len()));
        if let Some(room) = &mut content.room {
            if taken == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            *room -= taken;
        }
        content.bytes.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn start(disk: &Disk, capacity_bytes: usize) -> LossyWriter {
    let builder = LossyWriter::builder(disk.clone()).capacity_bytes(capacity_bytes);
    builder.notice(|lines| format!("[{lines} dropped]\n")).start().unwrap()
}

#[test]
fn lines_arrive_in_order_and_whole() {
    let disk = Disk::default();
    let mut log = start(&disk, 1 << 20);
    (0..100).for_each(|number| writeln_whole(&mut log, &format!("line {number}")));
    assert!(log.flush_within(LONG));
    let expected: String = (0..100).map(|number| format!("line {number}\n")).collect();
    assert_eq!(disk.text(), expected);
    assert_eq!((log.written(), log.dropped()), (100, 0));
}

/// Writes a line in one call, as an output of `tracing` does.
fn writeln_whole(log: &mut LossyWriter, line: &str) {
    log.write_all(format!("{line}\n").as_bytes()).unwrap();
}

#[test]
fn a_slow_reader_blocks_nobody_and_costs_counted_lines() {
    let disk = Disk::default();
    disk.change(|content| content.is_blocked = true);
    let mut log = start(&disk, 30);
    writeln_whole(&mut log, "line 0");
    disk.wait_for_write(1);
    // 7 bytes are being written, 23 are free: three lines more.
    (1..10).for_each(|number| writeln_whole(&mut log, &format!("line {number}")));
    assert_eq!(log.dropped(), 6);
    assert!(!log.flush_within(Duration::ZERO));
    disk.change(|content| content.is_blocked = false);
    assert!(log.flush_within(LONG));
    assert_eq!(disk.text().lines().filter(|line| line.starts_with("line")).count(), 4);
    assert!(disk.text().contains("[6 dropped]\n"), "{}", disk.text());
    assert_eq!((log.written(), log.dropped()), (4, 6));
}

#[test]
fn a_full_disk_costs_counted_lines_and_the_next_line_starts_anew() {
    let disk = Disk::default();
    let mut log = start(&disk, 1 << 20);
    disk.change(|content| content.room = Some(10));
    writeln_whole(&mut log, "line 0");
    assert!(log.flush_within(LONG));
    // Three bytes of it fit.
    writeln_whole(&mut log, "line 1");
    assert!(log.flush_within(LONG));
    writeln_whole(&mut log, "line 2");
    assert!(log.flush_within(LONG));
    assert_eq!((disk.text().as_str(), log.written(), log.dropped()), ("line 0\nlin", 1, 2));
    disk.change(|content| content.room = None);
    writeln_whole(&mut log, "line 3");
    assert!(log.flush_within(LONG));
    assert_eq!(disk.text(), "line 0\nlin\n[2 dropped]\nline 3\n");
    assert_eq!((log.written(), log.dropped()), (2, 2));
}

#[test]
fn a_line_that_lacks_only_its_break_is_written() {
    let disk = Disk::default();
    let mut log = start(&disk, 1 << 20);
    disk.change(|content| content.room = Some(6));
    writeln_whole(&mut log, "line 0");
    assert!(log.flush_within(LONG));
    disk.change(|content| content.room = None);
    writeln_whole(&mut log, "line 1");
    assert!(log.flush_within(LONG));
    assert_eq!((disk.text().as_str(), log.written()), ("line 0\nline 1\n", 2));
}

#[test]
fn written_and_dropped_are_all_with_eight_threads() {
    let disk = Disk::default();
    let mut log = start(&disk, 500);
    thread::scope(|scope| {
        for _ in 0..8 {
            let mut log = log.clone();
            scope.spawn(move || (0..5000).for_each(|_| writeln_whole(&mut log, "0123456789")));
        }
        for round in 0..50 {
            disk.change(|content| content.room = (round % 2 == 0).then_some(25));
            thread::yield_now();
        }
        disk.change(|content| content.room = None);
    });
    // The disk may have been full until the last line.
    writeln_whole(&mut log, "0123456789");
    assert!(log.flush_within(LONG));
    assert_eq!(log.written() + log.dropped(), 40_001);
    let text = disk.text();
    let whole = text.lines().filter(|line| *line == "0123456789").count();
    assert_eq!(whole as u64, log.written());
    let numbers = text.lines().filter_map(|line| line.strip_prefix('[')?.strip_suffix(" dropped]"));
    assert_eq!(numbers.map(|number| number.parse::<u64>().unwrap()).sum::<u64>(), log.dropped());
}

#[test]
fn the_last_clone_lets_the_thread_write_the_rest() {
    let disk = Disk::default();
    disk.change(|content| content.is_blocked = true);
    let mut log = start(&disk, 100);
    writeln_whole(&mut log, "one");
    disk.wait_for_write(1);
    writeln_whole(&mut log, "two");
    drop(log);
    disk.change(|content| content.is_blocked = false);
    disk.wait_for_write(2);
    // The thread drops its output as the last thing.
    while Arc::strong_count(&disk.0) > 1 {
        thread::yield_now();
    }
    assert_eq!(disk.text(), "one\ntwo\n");
}

#[test]
fn a_line_that_can_never_fit_is_dropped_and_no_capacity_is_an_error() {
    let disk = Disk::default();
    let mut log = start(&disk, 5);
    writeln_whole(&mut log, "too long for it");
    assert!(log.flush_within(LONG));
    assert_eq!((disk.text().as_str(), log.dropped()), ("[1 dropped]\n", 1));
    let error = LossyWriter::builder(io::sink()).capacity_bytes(0).start().unwrap_err();
    assert!(error.to_string().contains("0 bytes"));
}

#[test]
fn an_output_that_panics_costs_counted_lines_and_the_next_ones_are_written() {
    /// Panics in its first write.
    struct Broken(Disk, bool);
    impl Write for Broken {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            assert!(std::mem::replace(&mut self.1, true), "the output is broken");
            self.0.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let disk = Disk::default();
    let builder = LossyWriter::builder(Broken(disk.clone(), false));
    let mut log = builder.notice(|lines| format!("[{lines} dropped]\n")).start().unwrap();
    writeln_whole(&mut log, "one");
    assert!(log.flush_within(LONG));
    writeln_whole(&mut log, "two");
    assert!(log.flush_within(LONG));
    assert_eq!((log.written(), log.dropped()), (1, 1));
    assert_eq!(disk.text(), "[1 dropped]\ntwo\n");
}
