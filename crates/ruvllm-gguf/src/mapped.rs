//! Maps of files that others may cut short while they are read.
//!
//! A page of a map that is no longer in its file, or that the disk cannot deliver, raises a signal (`SIGBUS`), which ends the
//! process. Where the system has such signals, a handler looks whether the address is in one of our maps; if so it puts
//! pages of zeros there and marks the map, and the thread goes on. Whoever computes with the bytes asks the mark behind it
//! ([`Watch::is_cut`]): what was read of a map with the mark is not to be used. Signals of other addresses go where they went before.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use source::{Map, map};

/// A file's bytes, mapped; where the system has no maps, read.
#[derive(Debug)]
pub struct MappedFile {
    map: Map,
    watch: Watch,
}

/// Tells whether a map was cut; clones tell of the same, also when the map is gone.
#[derive(Clone, Debug, Default)]
pub struct Watch(Arc<AtomicBool>);

impl Watch {
    /// Returns whether bytes of the map could not be read since it was made: they were zeros for those who read them.
    pub fn is_cut(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl MappedFile {
    /// Maps a file for reading.
    ///
    /// # Errors
    /// The system's.
    pub fn new(file: &File) -> io::Result<MappedFile> {
        let map = map(file)?;
        let watch = Watch::default();
        #[cfg(unix)]
        guard::add(&map, &watch.0);
        Ok(MappedFile { map, watch })
    }

    /// Returns what tells whether it was cut.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Lets go of the memory of a range; what reads it later reads the file again. A hint, which some systems ignore.
    pub fn release(&self, start: usize, n_bytes: usize) {
        #[cfg(unix)]
        // Refused where a page is locked: then it stays, which harms nothing.
        // SAFETY: the map is of a file and was never written, so a page that is touched again holds the same bytes as
        // before, or is one that the guard marks; what borrows them sees no change.
        let _ = unsafe { self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, n_bytes) };
        #[cfg(not(unix))]
        let _ = (start, n_bytes);
    }

    /// Asks the system to read a range in the background, before it is used. A hint, which some systems ignore.
    pub(crate) fn read_ahead(&self, start: usize, n_bytes: usize) {
        #[cfg(unix)]
        let _ = self.map.advise_range(memmap2::Advice::WillNeed, start, n_bytes);
        #[cfg(not(unix))]
        let _ = (start, n_bytes);
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        #[cfg(unix)]
        guard::remove(&self.map);
    }
}

/// The system's maps.
#[cfg(any(unix, windows))]
mod source {
    use std::fs::File;
    use std::io;

    pub(super) use memmap2::Mmap as Map;

    pub(super) fn map(file: &File) -> io::Result<Map> {
        // SAFETY: the map is read-only, and any bytes are sound to read, also such as change under the reader. That the
        // file may be cut short is what the watch is for.
        unsafe { Map::map(file) }
    }
}

/// Files that are read, where the system has no maps (WebAssembly).
#[cfg(not(any(unix, windows)))]
mod source {
    use std::fs::File;
    use std::io::{self, Read as _};

    pub(super) type Map = Vec<u8>;

    pub(super) fn map(mut file: &File) -> io::Result<Map> {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// The signal handler, and the maps that it knows.
#[cfg(unix)]
mod guard {
    use std::ffi::{c_int, c_void};
    use std::mem::MaybeUninit;
    use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
    use std::sync::{Arc, Once, OnceLock};

    /// Maps that are watched at once; further ones are not.
    const N_MAPS: usize = 1024;

    /// A map: where it begins and ends, and its mark. Free where the mark is null.
    struct Place {
        start: AtomicUsize,
        end: AtomicUsize,
        mark: AtomicPtr<AtomicBool>,
    }

    static PLACES: [Place; N_MAPS] = [const {
        Place { start: AtomicUsize::new(0), end: AtomicUsize::new(0), mark: AtomicPtr::new(std::ptr::null_mut()) }
    }; N_MAPS];

    /// What the signal did before, and the size of a page.
    static BEFORE: OnceLock<(libc::sigaction, usize)> = OnceLock::new();

    /// Has a map watched; its mark is held until it is removed.
    pub(super) fn add(map: &[u8], mark: &Arc<AtomicBool>) {
        if map.is_empty() {
            return;
        }
        install();
        let mark = Arc::into_raw(Arc::clone(mark)).cast_mut();
        for place in &PLACES {
            let taken =
                place.mark.compare_exchange(std::ptr::null_mut(), mark, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            if taken {
                place.start.store(map.as_ptr() as usize, Ordering::Release);
                place.end.store(map.as_ptr() as usize + map.len(), Ordering::Release);
                return;
            }
        }
        // SAFETY: it was made by `into_raw` above, and no place has it.
        drop(unsafe { Arc::from_raw(mark) });
    }

    /// Has a map watched no more. To be called before its addresses are free.
    pub(super) fn remove(map: &[u8]) {
        let start = map.as_ptr() as usize;
        let is_it =
            |place: &&Place| place.end.load(Ordering::Acquire) > start && place.start.load(Ordering::Acquire) == start;
        let Some(place) = PLACES.iter().find(is_it).filter(|_| !map.is_empty()) else { return };
        place.end.store(0, Ordering::Release);
        place.start.store(0, Ordering::Release);
        let mark = place.mark.swap(std::ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: `add` put it there by `into_raw`, and the swap gave it to nobody else. No thread is in the handler for
        // this map: nobody reads a map that is dropped.
        drop(unsafe { Arc::from_raw(mark) });
    }

    /// Installs the handler, once.
    fn install() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: sysconf only reads.
            let page_bytes = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
            let mut before = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: a zeroed `sigaction` is a sound one; with no new action the call only writes `before`.
            let before = unsafe {
                libc::sigaction(libc::SIGBUS, std::ptr::null(), before.as_mut_ptr());
                before.assume_init()
            };
            // The handler may run as soon as it is installed.
            let _ = BEFORE.set((before, page_bytes));
            // SAFETY: as above; `handle` has the signature that SA_SIGINFO asks for, and does only what a handler may.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = handle as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                libc::sigemptyset(&mut action.sa_mask);
                libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
            }
        });
    }

    /// Handles the signal. It only reads and writes atomics, maps pages, and calls what was there before.
    extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        let Some((before, page_bytes)) = BEFORE.get() else { return };
        // SAFETY: the system gives a sound `siginfo_t`, which has an address for this signal.
        let address = unsafe { (*info).si_addr() } as usize;
        for place in &PLACES {
            let (start, end) = (place.start.load(Ordering::Acquire), place.end.load(Ordering::Acquire));
            if address < start || address >= end {
                continue;
            }
            let page = address & !(page_bytes - 1);
            let n_bytes = (end - page).next_multiple_of(*page_bytes);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            // SAFETY: the range is the rest of a map that lives while it is in the table, and that is only read: pages of
            // zeros in the place of what cannot be read are sound. `mmap` is a plain system call here.
            let mapped = unsafe { libc::mmap(page as *mut c_void, n_bytes, libc::PROT_READ, flags, -1, 0) };
            let mark = place.mark.load(Ordering::Acquire);
            if mapped == libc::MAP_FAILED || mark.is_null() {
                break;
            }
            // SAFETY: the table holds a reference to the mark as long as the map is in it.
            unsafe { (*mark).store(true, Ordering::Release) };
            return;
        }
        pass_on(before, signal, info, context);
    }

    /// Does what the signal did before.
    fn pass_on(before: &libc::sigaction, signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        match before.sa_sigaction {
            libc::SIG_DFL | libc::SIG_IGN => {
                // SAFETY: with the default the fault, which comes again at once, ends the process as it would have.
                unsafe {
                    let mut default: libc::sigaction = std::mem::zeroed();
                    default.sa_sigaction = libc::SIG_DFL;
                    libc::sigaction(signal, &default, std::ptr::null_mut());
                }
            }
            handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
                // SAFETY: it was installed with SA_SIGINFO, so this is its signature.
                let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                    unsafe { std::mem::transmute(handler) };
                handler(signal, info, context);
            }
            handler => {
                // SAFETY: it was installed without SA_SIGINFO, so this is its signature.
                let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
                handler(signal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// A file of bytes that are 7.
    fn file(n_bytes: usize) -> File {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&vec![7; n_bytes]).expect("it can be written");
        file
    }

    #[test]
    #[cfg(unix)]
    fn what_is_cut_off_is_zeros_and_marked() {
        let file = file(1 << 20);
        let (map, other) = (MappedFile::new(&file).expect("a map"), MappedFile::new(&file).expect("a map"));
        assert!(map.iter().all(|&byte| byte == 7) && !map.watch().is_cut());
        file.set_len(100_000).expect("it can be cut");
        // The page of the new end is whole; what is behind its file reads as zeros.
        assert!(map[..100_000].iter().all(|&byte| byte == 7) && !map.watch().is_cut());
        assert_eq!((map[500_000], map.watch().is_cut(), other.watch().is_cut()), (0, true, false));
        assert!(map[500_000..].iter().all(|&byte| byte == 0));
        // Each map has a mark of its own, on whatever thread it is read.
        let watch = other.watch().clone();
        std::thread::spawn(move || assert_eq!(other[(1 << 20) - 1], 0)).join().expect("it lives");
        assert!(watch.is_cut());
    }

    #[test]
    fn many_maps_come_and_go() {
        let file = file(10_000);
        for _ in 0..3_000 {
            let map = MappedFile::new(&file).expect("a map");
            assert_eq!((map.len(), map[9_999], map.watch().is_cut()), (10_000, 7, false));
        }
        let maps: Vec<_> = (0..1_100).map(|_| MappedFile::new(&file).expect("a map")).collect();
        assert!(maps.iter().all(|map| map[0] == 7));
        drop(maps);
        let map = MappedFile::new(&file).expect("a map");
        file.set_len(0).expect("it can be cut");
        #[cfg(unix)]
        assert!(map[0] == 0 && map.watch().is_cut());
        drop(map);
    }
}
