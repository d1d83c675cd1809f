//! A bounded smoke of every fuzz target, in ordinary Rust: seeds and their mutations, the same ones on every run.
//!
//! A body may not panic, nor take more memory or time than stated here, whatever the bytes. `fuzz/` looks further.

mod above;
mod gauge;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use lockstep_testkit::fuzz::Target;
use lockstep_testkit::fuzz::mutate::mutation;

/// Mutations of each target, over all of its seeds.
const MUTATIONS: u64 = 300;
/// Memory that any input may take, and more for each of its bytes. Fixed buffers (a line reader's 256 KiB, a scanner's 1 MiB) and what
/// Arrow's decoder takes for batches whose checksum was made right around a lie (90 MB were seen) stay below the first; values read from text (a digit and a comma become an f64 or a node of 56 bytes in a list that
/// doubles as it grows) below the second.
const MEMORY: u64 = 128 << 20;
const MEMORY_FACTOR: u64 = 100;
/// Processor time that any input may take. All of them together take some six seconds in a debug build.
const TIME: Duration = Duration::from_secs(1);

/// Runs one input; what is wrong with it.
fn try_one(body: fn(&[u8]), input: &[u8]) -> Result<(), String> {
    let mut outcome = Ok(());
    let cost = gauge::measure(|| {
        outcome = catch_unwind(AssertUnwindSafe(|| body(input))).map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            format!("panics: {}", text.unwrap_or_default())
        });
    });
    outcome?;
    let bound = MEMORY + MEMORY_FACTOR * input.len() as u64;
    if cost.bytes > bound {
        return Err(format!("takes {} bytes of memory, {bound} are allowed", cost.bytes));
    }
    if cost.time > TIME {
        return Err(format!("takes {:?}, {TIME:?} are allowed", cost.time));
    }
    Ok(())
}

/// Runs a target over its seeds and their mutations; the first input that fails, in words.
fn smoke(target: &Target) -> Result<(), String> {
    let seeds = (target.seeds)();
    let fault = |what: String, input: &[u8]| {
        let start: String =
            input.iter().take(400).flat_map(|byte| byte.escape_ascii()).map(char::from).collect();
        format!("{}: {what}; {} bytes: {start}", target.name, input.len())
    };
    for (at, seed) in seeds.iter().enumerate() {
        try_one(target.body, seed).map_err(|what| fault(format!("seed {at} {what}"), seed))?;
    }
    for number in 0..MUTATIONS {
        let at = number as usize % seeds.len();
        let other = &seeds[(number as usize / seeds.len() + at + 1) % seeds.len()];
        let input = mutation(&seeds[at], other, number);
        try_one(target.body, &input)
            .map_err(|what| fault(format!("mutation {number} of seed {at} {what}"), &input))?;
    }
    Ok(())
}

/// Every `of`-th target: tests run beside one another.
fn share(part: usize, of: usize) {
    let faults: Vec<String> = above::targets()
        .enumerate()
        .filter(|(at, _)| at % of == part)
        .filter_map(|(_, target)| smoke(target).err())
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn no_reader_panics_or_takes_too_much_first_quarter() {
    share(0, 4);
}

#[test]
fn no_reader_panics_or_takes_too_much_second_quarter() {
    share(1, 4);
}

#[test]
fn no_reader_panics_or_takes_too_much_third_quarter() {
    share(2, 4);
}

#[test]
fn no_reader_panics_or_takes_too_much_fourth_quarter() {
    share(3, 4);
}

#[test]
fn every_target_has_a_name_of_its_own_and_seeds() {
    let mut names: Vec<&str> = above::targets().map(|target| target.name).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
    for target in above::targets() {
        assert!(
            (target.seeds)().iter().any(|seed| !seed.is_empty()),
            "{} has no seed",
            target.name
        );
    }
}

/// Readers with a fault each, over the seed `{"rows":3}`.
fn planted(body: fn(&[u8])) -> String {
    let seeds = || vec![br#"{"rows":3,"name":"x"}"#.to_vec()];
    smoke(&Target { name: "planted", body, seeds }).expect_err("the fault is found")
}

fn rows(data: &[u8]) -> Option<u64> {
    let value: serde_json::Value = serde_json::from_slice(data).ok()?;
    value.get("rows")?.as_u64()
}

#[test]
fn the_smoke_finds_a_planted_panic() {
    let text = planted(|data| assert!(rows(data).is_none_or(|rows| rows < 4_000_000_000), "lie"));
    assert!(text.contains("panics: lie") && text.contains("mutation"), "{text}");
}

#[test]
fn the_smoke_finds_an_allocation_by_an_unchecked_length() {
    let text = planted(|data| {
        let rows = rows(data).unwrap_or(0).min(1 << 29);
        std::hint::black_box(Vec::<u8>::with_capacity(rows as usize));
    });
    assert!(text.contains("bytes of memory"), "{text}");
}

#[test]
fn the_smoke_finds_work_that_a_length_asks_for() {
    let text = planted(|data| {
        if rows(data).is_some_and(|rows| rows > 1 << 30) {
            // By the same clock: on a loaded machine three seconds on the wall may be less than one of work.
            let clock = std::time::Instant::now();
            let now = || gauge::on_processor().unwrap_or_else(|| clock.elapsed());
            let begin = now();
            while now().saturating_sub(begin) < TIME + TIME / 2 {
                std::hint::black_box((0..1000_u64).sum::<u64>());
            }
        }
    });
    assert!(text.contains("are allowed") && !text.contains("memory"), "{text}");
}

#[test]
fn the_smoke_passes_a_reader_that_checks() {
    let body = |data: &[u8]| {
        std::hint::black_box(rows(data).filter(|rows| *rows < 1000));
    };
    let seeds = || vec![br#"{"rows":3}"#.to_vec()];
    assert_eq!(smoke(&Target { name: "checked", body, seeds }), Ok(()));
}
