//! The draw in f64, written apart from `crate::sample`.

/// Settings of a draw.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    pub(super) temperature: f64,
    pub(super) top_k: usize,
    pub(super) top_p: f64,
    pub(super) min_p: f64,
    /// Threads of the fill that the race reproduces.
    pub(super) threads: u64,
}

/// Ids that may be drawn, most probable first, with their probabilities before any cut.
pub(super) struct Ranked {
    ids: Vec<u32>,
    masses: Vec<f64>,
    /// Least and most ids that survive, where a cut lies within the slack of its edge; else the same.
    kept: std::ops::RangeInclusive<usize>,
}

impl Ranked {
    /// Filters a row without NaN and +inf; edges that lie within `slack` may fall to either side.
    pub(super) fn new(row: &[f32], settings: Settings, slack: f64) -> Self {
        let mut ids: Vec<u32> = (0..).take(row.len()).collect();
        let logit = |id: u32| row[id as usize] + 0.0;
        ids.retain(|&id| logit(id) > f32::NEG_INFINITY);
        ids.sort_by(|&a, &b| logit(b).total_cmp(&logit(a)).then(a.cmp(&b)));
        ids.truncate(settings.top_k);
        let largest = f64::from(logit(ids[0]));
        let mut masses: Vec<f64> = ids
            .iter()
            .map(|&id| ((f64::from(logit(id)) - largest) / settings.temperature).exp())
            .collect();
        let sum: f64 = masses.iter().sum();
        masses.iter_mut().for_each(|mass| *mass /= sum);
        let cut = |slack: f64| {
            let floor = settings.min_p * masses[0] * (1.0 + slack);
            let by_min_p = masses.partition_point(|&mass| mass >= floor).max(1);
            let mut sum = 0.0;
            let crossing = masses.iter().position(|&mass| {
                sum += mass;
                sum >= settings.top_p - slack
            });
            let off = settings.top_p >= 1.0;
            let by_top_p = crossing.filter(|_| !off).map_or(ids.len(), |place| place + 1);
            by_min_p.min(by_top_p)
        };
        let kept = cut(slack)..=cut(-slack);
        Self { ids, masses, kept }
    }

    /// Distance of `uniform` from the interval of `token` in the running sum.
    pub(super) fn interval_distance(&self, token: u32, uniform: f64) -> f64 {
        self.least(token, |place, kept| {
            let total: f64 = self.masses[..kept].iter().sum();
            let below = self.masses[..place].iter().sum::<f64>() / total;
            let above = if place + 1 == kept { 1.0 } else { below + self.masses[place] / total };
            (below - uniform).max(uniform - above).max(0.0)
        })
    }

    /// ln of the best quotient of the race over that of `token`, with the uniform number of each id.
    pub(super) fn race_distance(&self, token: u32, uniform: impl Fn(u32) -> f32) -> f64 {
        let quotient = |place: usize| self.masses[place] / exponential(uniform(self.ids[place]));
        let quotients: Vec<f64> = (0..self.ids.len()).map(quotient).collect();
        self.least(token, |place, kept| {
            let best = quotients[..kept].iter().copied().fold(0.0, f64::max);
            (best / quotients[place]).ln()
        })
    }

    fn least(&self, token: u32, distance: impl Fn(usize, usize) -> f64) -> f64 {
        let Some(place) = self.ids.iter().position(|&id| id == token) else {
            return f64::INFINITY;
        };
        let sizes = self.kept.clone().filter(|&kept| place < kept);
        sizes.map(|kept| distance(place, kept)).fold(f64::INFINITY, f64::min)
    }
}

/// `-__logf(uniform)`, half an f32 epsilon where the uniform number rounds to 1. The instruction's bits are a measured table, not a formula
/// that could be written another way.
fn exponential(uniform: f32) -> f64 {
    let half = f32::EPSILON / 2.0;
    f64::from(if uniform >= 1.0 - half {
        half
    } else {
        -crate::sample::fast_log::fast_log(uniform)
    })
}

/// The next state of xorshift64 (13, 7, 17) and its number.
pub(super) fn xorshift(word: u64) -> (u64, f32) {
    let a = word ^ (word << 13);
    let b = a ^ (a >> 7);
    let c = b ^ (b << 17);
    (c, ((c & 0xffff_ffff) as f32) * 2.0_f32.powi(-32))
}

/// The number of element `id` that a fill by `threads` threads gives on the Philox stream of `seed` from `offset` on.
pub(super) fn race_uniform(seed: u64, offset: u64, threads: u64, id: u32) -> f32 {
    let (turn, thread) = (u64::from(id) / threads, u64::from(id) % threads);
    let block = offset / 4 + turn / 4;
    let mut counter = [block & 0xffff_ffff, block >> 32, thread & 0xffff_ffff, thread >> 32];
    let mut key = [seed & 0xffff_ffff, seed >> 32];
    for _ in 0..10 {
        let (first, second) = (0xD251_1F53 * counter[0], 0xCD9E_8D57 * counter[2]);
        counter = [
            (second >> 32) ^ counter[1] ^ key[0],
            second & 0xffff_ffff,
            (first >> 32) ^ counter[3] ^ key[1],
            first & 0xffff_ffff,
        ];
        key = [(key[0] + 0x9E37_79B9) & 0xffff_ffff, (key[1] + 0xBB67_AE85) & 0xffff_ffff];
    }
    let number = match turn % 4 {
        0 => counter[0],
        1 => counter[1],
        2 => counter[2],
        _ => counter[3],
    };
    number as f32 * 2.0_f32.powi(-32) + 2.0_f32.powi(-33)
}
