//! Planted mistakes of layout and order, each found and named.

use super::*;

/// File, order of the slices, name of the hint, a part of its text.
type Case = (&'static str, fn(usize) -> usize, &'static str, &'static str);

/// The hint that explains a pair best.
#[track_caller]
fn best(report: &SetsReport) -> (&str, &Hint) {
    let pair = &report.pairs[0];
    assert_ne!(pair.status, Status::Identical, "{}", report.summary);
    let hint = pair.hints.first().unwrap_or_else(|| panic!("no hint: {}", pair.why));
    (hint.name.as_str(), hint)
}

/// Slices of axis 0 put into another order.
fn shuffled(values: &[f32], slices: usize, order: impl Fn(usize) -> usize) -> Vec<f32> {
    let each = values.len() / slices;
    (0..slices).flat_map(|at| values[order(at) * each..(order(at) + 1) * each].to_vec()).collect()
}

#[test]
fn a_transposed_layout_under_the_same_shape_is_named() {
    let home = Home::new();
    let values = noise(24 * 10, 5);
    let left = home.set("a", &[f32s("t", &[24, 10], &values)]);
    let turned: Vec<f32> = (0..10)
        .flat_map(|c| (0..24).map(move |r| (r, c)))
        .map(|(r, c)| values[r * 10 + c])
        .collect();
    let right = home.set("b", &[f32s("t", &[24, 10], &turned)]);
    let report = compared(&left, &right, &SetOptions::default());
    let (name, hint) = best(&report);
    assert_eq!((name, hint.after), ("axes_permuted", Some(0.0)));
    assert!(
        hint.text.contains("[1, 0]") && hint.text.contains("[10, 24] in memory"),
        "{}",
        hint.text
    );
    // The shape as it lies: not comparable, and the remedy is said.
    let right = home.set("c", &[f32s("t", &[10, 24], &turned)]);
    let report = compared(&left, &right, &SetOptions::default());
    let (name, hint) = best(&report);
    assert_eq!(
        (name, report.pairs[0].status, hint.after),
        ("axes_permuted", Status::Incomparable, Some(0.0))
    );
    let right = home.set("d", &[f32s("t", &[1, 24, 1, 10], &values)]);
    assert_eq!(best(&compared(&left, &right, &SetOptions::default())).0, "shape_only");
}

#[test]
fn exchanged_heads_shifted_rows_and_a_reordered_axis_are_named() {
    let home = Home::new();
    let values = noise(12 * 40, 6);
    let left = home.set("a", &[f32s("t", &[12, 40], &values)]);
    let cases: [Case; 5] = [
        (
            "swap",
            |at| [0, 1, 5, 3, 4, 2, 6, 7, 8, 9, 10, 11][at],
            "runs_swapped",
            "slices 2 and 5 of axis 0",
        ),
        ("halves", |at| (at + 6) % 12, "runs_swapped", "slices 0..6 and 6..12 of axis 0"),
        ("late", |at| at.saturating_sub(1), "axis_shifted", "lie 1 later"),
        ("reverse", |at| 11 - at, "axis_reversed", "the other way"),
        (
            "pairs",
            |at| if at < 6 { 2 * at } else { 2 * (at - 6) + 1 },
            "halves_interleaved",
            "pairs on the baseline's side",
        ),
    ];
    for (file, order, expected, part) in cases {
        let right = home.set(file, &[f32s("t", &[12, 40], &shuffled(&values, 12, order))]);
        let report = compared(&left, &right, &SetOptions::default());
        let named = report.pairs[0].hints.iter().find(|hint| hint.name == expected);
        let hint = named.unwrap_or_else(|| panic!("{file}: {:?}", report.pairs[0].hints));
        assert!(hint.text.contains(part) && hint.axis == Some(0), "{file}: {}", hint.text);
        assert_eq!(report.verdict, Verdict::Diverged);
    }
    // The dimensions of each head, halves for pairs: the rotary styles.
    let halves: Vec<f32> = (0..12 * 40)
        .map(|i| (i / 40, i % 40))
        .map(|(r, d)| values[r * 40 + if d < 20 { 2 * d } else { 2 * (d - 20) + 1 }])
        .collect();
    let right = home.set("rotary", &[f32s("t", &[12, 40], &halves)]);
    let report = compared(&left, &right, &SetOptions::default());
    let (name, hint) = best(&report);
    assert_eq!((name, hint.axis), ("halves_interleaved", Some(1)));
    // Noise on top hides nothing.
    let noisy: Vec<f32> = shuffled(&values, 12, |at| (at + 6) % 12)
        .iter()
        .zip(noise(480, 9))
        .map(|(v, n)| v + 0.002 * n)
        .collect();
    let right = home.set("noisy", &[f32s("t", &[12, 40], &noisy)]);
    let report = compared(&left, &right, &SetOptions::default());
    assert!(
        report.pairs[0].hints.iter().any(|hint| hint.name == "runs_swapped"),
        "{:?}",
        report.pairs[0].hints
    );
    // And unrelated values get no explanation.
    let right = home.set("other", &[f32s("t", &[12, 40], &noise(480, 77))]);
    assert!(compared(&left, &right, &SetOptions::default()).pairs[0].hints.is_empty());
}

#[test]
fn a_paged_cache_is_read_by_its_table_and_a_table_off_by_one_is_named() {
    let home = Home::new();
    let (blocks, block, dim) = (8, 4, 6);
    let cache = noise(blocks * block * dim, 7);
    let table = [5, 2, 6, 1, 3];
    let rows = 18;
    let flat = |table: &[usize]| -> Vec<f32> {
        (0..rows)
            .flat_map(|row| {
                let at = (table[row / block] * block + row % block) * dim;
                cache[at..at + dim].to_vec()
            })
            .collect()
    };
    let left = home.set("a", &[f32s("k", &[rows, dim], &flat(&table))]);
    let with_table = |table: &[i32]| Tensor::from_i32("table", vec![table.len()], table);
    let right = home.set(
        "b",
        &[f32s("pages", &[blocks, block, dim], &cache), with_table(&[5, 2, 6, 1, 3, -1, -1])],
    );
    let listed = "pairs: [{left: k, right: pages, right_layout: [{pages: {axis: 0, table: [5, 2, 6, 1, 3], rows: 18}}]}]\nallow_skip: [table]";
    let taken = "pairs: [{left: k, right: pages, right_layout: [{pages: {axis: 0, table_from: table, rows: 18}}]}]\nallow_skip: [table]";
    for map in [listed, taken] {
        assert_eq!(compared(&left, &right, &mapped(map)).verdict, Verdict::Identical, "{map}");
    }
    let small = home
        .set("c", &[f32s("pages", &[blocks, block, dim], &cache), with_table(&[4, 1, 5, 0, 2])]);
    let report = compared(&left, &small, &mapped(taken));
    let (name, hint) = best(&report);
    assert_eq!(
        (name, hint.text.as_str(), hint.after),
        ("block_table_off", "every entry of the block table is one too small", Some(0.0))
    );
    // The table of one block further on: the first block of five is right nowhere, so most rows agree and not all.
    let early = home
        .set("d", &[f32s("pages", &[blocks, block, dim], &cache), with_table(&[7, 5, 2, 6, 1])]);
    let report = compared(&left, &early, &mapped(taken));
    assert!(
        report.pairs[0]
            .hints
            .iter()
            .any(|hint| hint.name == "axis_shifted" && hint.text.contains("4 later")),
        "{:?}",
        report.pairs[0].hints
    );
    let outside = home
        .set("e", &[f32s("pages", &[blocks, block, dim], &cache), with_table(&[5, 2, 8, 1, 3])]);
    let report = compared(&left, &outside, &mapped(taken));
    assert!(report.pairs[0].why.contains("block 8 of 8"), "{}", report.pairs[0].why);
}

#[test]
fn shards_are_joined_along_an_axis_and_exchanged_ones_are_named() {
    let home = Home::new();
    let (rows, heads, dim) = (5, 8, 4);
    let whole = noise(rows * heads * dim, 8);
    let shard = |rank: usize| -> Vec<f32> {
        (0..rows)
            .flat_map(|row| {
                let at = (row * heads + rank * 2) * dim;
                whole[at..at + 2 * dim].to_vec()
            })
            .collect()
    };
    let left = home.set("a", &[f32s("k", &[rows, heads, dim], &whole)]);
    let shards = |order: [usize; 4]| -> Vec<Tensor> {
        order
            .iter()
            .enumerate()
            .map(|(at, rank)| f32s(&format!("rank{at}.k"), &[rows, 2, dim], &shard(*rank)))
            .collect()
    };
    let map = r"pairs: [{left: k, right: 'rank(?<tp>\d+)\.k', right_join: {axis: 1, by: tp}}]";
    let right = home.set("b", &shards([0, 1, 2, 3]));
    let report = compared(&left, &right, &mapped(map));
    assert_eq!((report.verdict, report.pairs[0].right.len()), (Verdict::Identical, 4));
    let right = home.set("c", &shards([0, 2, 1, 3]));
    let report = compared(&left, &right, &mapped(map));
    let (name, hint) = best(&report);
    assert_eq!(
        (name, hint.text.as_str()),
        ("shards_reordered", "shards 1 and 2 of the target are exchanged")
    );
    // Stacked along a new axis, and a shard of another shape.
    let layers = home.set("d", &[f32s("all", &[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])]);
    let each =
        home.set("e", &[f32s("l0", &[3], &[0.0, 1.0, 2.0]), f32s("l1", &[3], &[3.0, 4.0, 5.0])]);
    let stack =
        r"pairs: [{left: all, right: 'l(?<l>\d)', right_join: {axis: 0, by: l, stack: true}}]";
    assert_eq!(compared(&layers, &each, &mapped(stack)).verdict, Verdict::Identical);
    let odd = home.set("f", &[f32s("l0", &[3], &[0.0; 3]), f32s("l1", &[2], &[0.0; 2])]);
    assert!(compared(&layers, &odd, &mapped(stack)).pairs[0].why.contains("shards of one shape"));
}

#[test]
fn kv_heads_are_repeated_for_query_heads_and_a_tiled_order_is_named() {
    let home = Home::new();
    let (rows, kv, times, dim) = (3, 2, 4, 5);
    let cache = noise(rows * kv * dim, 11);
    let expanded = |map: fn(usize) -> usize| -> Vec<f32> {
        (0..rows)
            .flat_map(|row| (0..kv * times).map(move |head| (row, head)))
            .flat_map(|(row, head)| {
                let at = (row * kv + map(head)) * dim;
                cache[at..at + dim].to_vec()
            })
            .collect()
    };
    let right = home.set("b", &[f32s("k", &[rows, kv, dim], &cache)]);
    let map = "pairs: [{left: k, right: k, right_layout: [{expand: {axis: 1, times: 4}}]}]";
    let left = home.set("a", &[f32s("k", &[rows, 8, dim], &expanded(|head| head / 4))]);
    assert_eq!(compared(&left, &right, &mapped(map)).verdict, Verdict::Identical);
    let left = home.set("c", &[f32s("k", &[rows, 8, dim], &expanded(|head| head % 2))]);
    let report = compared(&left, &right, &mapped(map));
    let (name, hint) = best(&report);
    assert_eq!((name, hint.axis, hint.after), ("halves_interleaved", Some(1), Some(0.0)));
}

#[test]
fn steps_split_merge_take_slice_and_reshape_and_refuse_what_does_not_fit() {
    let home = Home::new();
    let values: Vec<f32> = (0..24).map(|v| v as f32).collect();
    let set =
        |name: &str, shape: &[usize], values: &[f32]| home.set(name, &[f32s("t", shape, values)]);
    let right = set("r", &[4, 6], &values);
    let column: Vec<f32> = values.chunks(6).flat_map(|row| row[2..4].to_vec()).collect();
    let taken: Vec<f32> =
        [3, 0].iter().flat_map(|row| values[row * 6..(row + 1) * 6].to_vec()).collect();
    for (steps, shape, expected) in [
        ("[{slice: {axis: 1, from: 2, to: 4}}]", vec![4, 2], column.clone()),
        ("[{take: {axis: 0, rows: [3, 0]}}]", vec![2, 6], taken.clone()),
        ("[{split: {axis: 1, sizes: [2, 3]}}]", vec![4, 2, 3], values.clone()),
        ("[{split: {axis: 1, sizes: [2, 3]}}, {merge: 0}]", vec![8, 3], values.clone()),
        ("[{shape: [2, 12]}]", vec![2, 12], values.clone()),
        ("[{take: {axis: 0, rows: [3, 0]}}, {merge: 0}]", vec![12], taken),
        ("[{slice: {axis: 1, from: 2, to: 4}}, {merge: 0}]", vec![8], column),
    ] {
        let left = set("l", &shape, &expected);
        let map = format!("pairs: [{{left: t, right: t, right_layout: {steps}}}]");
        let report = compared(&left, &right, &mapped(&map));
        assert_eq!(report.verdict, Verdict::Identical, "{steps}: {:?}", report.pairs[0]);
    }
    let left = set("l", &[4, 6], &values);
    for (steps, part) in [
        ("[{slice: {axis: 1, from: 2, to: 9}}]", "2..9"),
        ("[{take: {axis: 0, rows: [4]}}]", "no slice 4"),
        ("[{split: {axis: 1, sizes: [4, 4]}}]", "cannot be split"),
        ("[{squeeze: 0}]", "cannot be squeezed"),
        ("[{permute: [0, 0]}]", "no order of 2 axes"),
        ("[{merge: 1}]", "no axis 2"),
        ("[{shape: [5, 5]}]", "does not hold"),
        ("[{permute: [1, 0]}, {shape: [24]}]", "before the steps"),
        ("[{expand: {axis: 0, times: 99999999999}}]", "too many rows"),
        ("[{pages: {axis: 0, table_from: nothing}}]", "no tensor `nothing`"),
    ] {
        let map = format!("pairs: [{{left: t, right: t, right_layout: {steps}}}]");
        let report = compared(&left, &right, &mapped(&map));
        assert!(
            report.pairs[0].why.contains(part) && report.verdict.exit_code() == 4,
            "{steps}: {}",
            report.pairs[0].why
        );
    }
}

#[test]
fn bytes_turned_round_a_wrong_type_and_a_factor_are_named() {
    let home = Home::new();
    let values = noise(64, 12);
    let left = home.set("a", &[bf16s("t", &[64], &values)]);
    let mut turned = bf16s("t", &[64], &values);
    turned.data.chunks_exact_mut(2).for_each(<[u8]>::reverse);
    assert_eq!(
        best(&compared(&left, &home.set("b", &[turned]), &SetOptions::default())).0,
        "byte_order"
    );
    let mut tagged = bf16s("t", &[64], &values);
    tagged.dtype = DType::F16;
    let report = compared(&left, &home.set("c", &[tagged]), &SetOptions::default());
    assert_eq!(best(&report).0, "element_type");
    let scaled: Vec<f32> = values.iter().map(|v| v * 0.125).collect();
    let report =
        compared(&left, &home.set("d", &[bf16s("t", &[64], &scaled)]), &SetOptions::default());
    let (name, hint) = best(&report);
    assert!(name == "scaled" && hint.text.contains("0.125"), "{}", hint.text);
    // Equal values in two types: equal, and said to be in two types.
    let wide: Vec<f32> = values.iter().map(|v| bf16::from_f32(*v).to_f32()).collect();
    let report =
        compared(&left, &home.set("e", &[f32s("t", &[64], &wide)]), &SetOptions::default());
    assert_eq!((report.pairs[0].status, report.verdict.exit_code()), (Status::EqualValues, 0));
    assert!(report.limits.iter().any(|limit| limit.contains("two element types")));
}
