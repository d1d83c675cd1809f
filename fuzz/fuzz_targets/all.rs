//! Every fuzz target in one binary: `LOCKSTEP_FUZZ_TARGET` says which. Without it the names are printed; with `LOCKSTEP_FUZZ_SEEDS=DIR`
//! the seeds of all are written to `DIR/<target>/`.

#![no_main]

#[path = "../../tests/fuzz/above.rs"]
mod above;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::LazyLock;

thread_local! {
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

static BODY: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    if let Some(dir) = std::env::var_os("LOCKSTEP_FUZZ_SEEDS") {
        write_seeds(Path::new(&dir));
        std::process::exit(0);
    }
    let name = std::env::var("LOCKSTEP_FUZZ_TARGET").unwrap_or_default();
    if let Some(target) = above::targets().find(|target| target.name == name) {
        return target.body;
    }
    eprintln!("LOCKSTEP_FUZZ_TARGET is to name one of:");
    above::targets().for_each(|target| println!("{}", target.name));
    std::process::exit(2)
});

fn write_seeds(dir: &Path) {
    for target in above::targets() {
        let home = dir.join(target.name);
        std::fs::create_dir_all(&home).expect("a folder of seeds");
        for (at, seed) in (target.seeds)().iter().enumerate() {
            std::fs::write(home.join(format!("{at:02}")), seed).expect("a seed");
        }
    }
}

/// Panics that a reader catches by itself (decoders of Arrow and Parquet give up so) are no finding: libFuzzer's own hook would end the
/// process at the first, so it is replaced by one that only remembers where the last panic was.
fn remember_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let trace = std::backtrace::Backtrace::capture();
        LAST.with_borrow_mut(|last| *last = format!("{panic}\n{trace}"));
    }));
}

libfuzzer_sys::fuzz_target!(
    init: {
        remember_panics();
        LazyLock::force(&BODY);
    },
    |data: &[u8]| {
        if catch_unwind(AssertUnwindSafe(|| BODY(data))).is_err() {
            LAST.with_borrow(|last| eprintln!("{last}"));
            std::process::abort();
        }
    }
);
