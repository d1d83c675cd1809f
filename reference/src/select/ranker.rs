//! A ranking, stage by stage: z-score, noise, group, layers, choice.

use std::borrow::Cow;

use lockstep_traces::{Aggregation, SelectionMode};

use super::budget::Ranking;
use super::choose;
use super::heads::HeadStats;
use super::input::{Heads, Input};
use super::noise::NoiseStream;
use super::pipeline::OverLayers;
use super::recipe::{GroupOrder, HeadUse, Recipe, RowOrder, ZRows};
use super::reduce::reduce;
use super::score::{LayerScores, Scorer};
use super::stages::{Grid, KeepSet, Outcome, Selection, Stages};
use super::zscore::zscore;
use super::{Real, SelectError};

/// A ranking with everything but the scores.
#[derive(Debug)]
pub struct Ranker<'a> {
    recipe: &'a Recipe,
    ranking: &'a Ranking,
    stats: Cow<'a, HeadStats>,
    /// Cache layer index, layer number and the layer of the statistics that serves it.
    served: Vec<(usize, u32, u32)>,
    layers: usize,
    kv_heads: usize,
    group: usize,
    rows: usize,
    prompt_len: usize,
}

impl<'a> Ranker<'a> {
    /// Prepares a ranking.
    ///
    /// # Errors
    /// [`SelectError`] where heads do not form groups or no layer has statistics.
    pub fn new(
        recipe: &'a Recipe,
        ranking: &'a Ranking,
        stats: &'a HeadStats,
        input: &Input<'_>,
    ) -> Result<Self, SelectError> {
        let (stats, group) = effective(recipe, stats, input.heads)?;
        let served = serve(recipe, &stats, &input.layers);
        if served.is_empty() {
            return Err(SelectError::Input {
                what: "no cached layer has statistics: these are another model's".to_owned(),
            });
        }
        Ok(Self {
            recipe,
            ranking,
            stats,
            served,
            layers: input.layers.len(),
            kv_heads: input.heads.kv_heads,
            group,
            rows: input.rows(),
            prompt_len: input.moment.prompt_len,
        })
    }

    /// Layers that are scored, in order.
    #[must_use]
    pub fn score_layers(&self) -> Vec<u32> {
        self.served.iter().map(|(_, number, _)| *number).collect()
    }

    /// Heads that are scored.
    #[must_use]
    pub fn score_heads(&self) -> &[u32] {
        self.stats.heads()
    }

    /// First row that must be scored: rows that are not ranked are scored only where the z-score counts them.
    fn first_scored(&self) -> usize {
        if self.recipe.z_rows == ZRows::All { 0 } else { self.ranking.first }
    }

    /// Raw scores by served layer, from `Ranker::first_scored` on.
    ///
    /// # Errors
    /// [`SelectError`] where the input contradicts itself.
    pub fn raw<R: Real>(
        &self,
        input: &Input<'_>,
        over_layers: &OverLayers<R>,
    ) -> Result<Vec<LayerScores<R>>, SelectError> {
        let first = self.first_scored();
        let scorer = Scorer::<R>::new(self.recipe, &self.stats, input, self.group, first)?;
        let one = |slot: usize| match self.served.get(slot) {
            Some((index, _, stats_layer)) => scorer.layer(*index, *stats_layer),
            None => Vec::new(),
        };
        Ok(over_layers(self.served.len(), &one))
    }

    /// All stages after the raw scores, and the choice.
    #[must_use]
    pub fn rank<R: Real>(
        &self,
        raw: &[LayerScores<R>],
        noise: Option<&mut NoiseStream>,
    ) -> Selection {
        let mut layers: Vec<Layer<R>> = raw.iter().map(|scores| self.normalise(scores)).collect();
        if let Some(noise) = noise {
            self.add_noise(&mut layers, noise);
        }
        for layer in &mut layers {
            self.group_after(layer);
        }
        let finals = self.finals(&layers);
        let keep = self.choose(&finals);
        Selection {
            outcome: Outcome::Ranked,
            keep: Some(keep),
            protected: self.ranking.protected(),
            candidates: self.ranking.candidates(),
            stages: Some(self.stages(raw, &layers, finals)),
        }
    }

    fn counted(&self) -> Vec<bool> {
        let first = self.first_scored();
        let count = |(row, guarded): (usize, &bool)| match self.recipe.z_rows {
            ZRows::All => true,
            ZRows::Candidates => row >= self.ranking.first && !guarded,
            ZRows::Decode => row >= self.ranking.first && row >= self.decode_from(),
        };
        self.ranking.guarded.iter().enumerate().map(count).skip(first).collect()
    }

    /// hf calls "decode" what follows its protected prefix, 0 where the prompt may be compressed; elsewhere (a
    /// hypothesis) it is what follows the prompt's rows.
    fn decode_from(&self) -> usize {
        let hf = self.recipe.order == RowOrder::PrefixThenScore || self.ranking.first > 0;
        if hf || self.recipe.mode == SelectionMode::Union {
            self.ranking.first
        } else {
            self.prompt_len.min(self.rows)
        }
    }

    fn normalise<R: Real>(&self, raw: &LayerScores<R>) -> Layer<R> {
        let counted = self.counted();
        let cut = self.ranking.first - self.first_scored();
        let z = |scores: &[R]| {
            let all = if self.recipe.normalize {
                zscore(scores, &counted, self.recipe.deviation, self.recipe.degenerate)
            } else {
                scores.to_vec()
            };
            all.into_iter().skip(cut).collect::<Vec<R>>()
        };
        if self.recipe.group_order == GroupOrder::AfterZ {
            let z = raw.iter().map(|row| row.as_deref().map(z)).collect();
            return Layer { z, group: Vec::new() };
        }
        let group = self.group_of(raw);
        let z = group.iter().map(|row| row.as_deref().map(z)).collect();
        let cut = |row: Option<Vec<R>>| row.map(|row| row.into_iter().skip(cut).collect());
        Layer { z, group: group.into_iter().map(cut).collect() }
    }

    /// Noise draws: one per (head row, column), head rows in file order; per-layer modes first draw and discard all.
    fn add_noise<R: Real>(&self, layers: &mut [Layer<R>], noise: &mut NoiseStream) {
        let order: Vec<(usize, usize)> = self.head_rows();
        let cols = self.rows - self.ranking.first;
        if self.recipe.mode == SelectionMode::PerLayerPerHead {
            noise.skip(draws(order.len(), cols));
        }
        let by_layer =
            (0..layers.len()).flat_map(|slot| order.iter().filter(move |(at, _)| *at == slot));
        let rows: Vec<(usize, usize)> = match self.recipe.mode {
            SelectionMode::PerLayerPerHead => by_layer.copied().collect(),
            _ => order.clone(),
        };
        for (slot, head) in rows {
            let row = layers
                .get_mut(slot)
                .and_then(|layer| layer.z.get_mut(head))
                .and_then(Option::as_mut);
            let Some(row) = row else { continue };
            for value in row {
                *value += R::of(f64::from(noise.noise()));
            }
        }
    }

    /// Rows of the head matrix in file order, as (slot among served layers, slot among heads).
    fn head_rows(&self) -> Vec<(usize, usize)> {
        let place = |(layer, head): &(u32, u32)| {
            let slot = self.served.iter().position(|(_, _, held)| held == layer)?;
            let head = self.stats.heads().iter().position(|held| held == head)?;
            Some((slot, head))
        };
        self.stats.sampled().iter().filter_map(place).collect()
    }

    fn group_after<R: Real>(&self, layer: &mut Layer<R>) {
        if self.recipe.group_order == GroupOrder::AfterZ {
            layer.group = self.group_of(&layer.z);
        }
    }

    fn group_of<R: Real>(&self, rows: &[Option<Vec<R>>]) -> Vec<Option<Vec<R>>> {
        let of_kv = |kv: usize| {
            let own = |(row, head): (&'_ Option<Vec<R>>, &u32)| -> Option<Vec<R>> {
                let mine = usize::try_from(*head).is_ok_and(|head| head / self.group == kv);
                if mine { row.clone() } else { None }
            };
            let members: Vec<Vec<R>> =
                rows.iter().zip(self.stats.heads()).filter_map(own).collect();
            let members: Vec<&[R]> = members.iter().map(Vec::as_slice).collect();
            reduce(&members, self.recipe.group)
        };
        (0..self.kv_heads).map(of_kv).collect()
    }

    /// Rows to rank, with their leading axes; guards are set.
    fn finals<R: Real>(&self, layers: &[Layer<R>]) -> (Vec<usize>, Vec<Vec<f64>>) {
        let (leading, rows) = match self.recipe.mode {
            SelectionMode::PerHead => (
                [self.kv_heads].to_vec(),
                (0..self.kv_heads).map(|kv| self.over_layers(layers, kv)).collect(),
            ),
            SelectionMode::Union => {
                (Vec::new(), vec![widest(layers.iter().flat_map(Layer::z_rows))])
            }
            SelectionMode::PerLayer => (
                [self.layers].to_vec(),
                self.each_layer(
                    layers,
                    |layer| vec![widest(self.by_kv(layer).iter().flatten().map(Vec::as_slice))],
                    1,
                ),
            ),
            SelectionMode::PerLayerPerHead | SelectionMode::LegacyLayerLocal => (
                [self.layers, self.kv_heads].to_vec(),
                self.each_layer(layers, |layer| self.layer_heads(layer), self.kv_heads),
            ),
        };
        let guarded = self.ranking.guarded.get(self.ranking.first..).unwrap_or_default();
        let guard = |row: Vec<R>| -> Vec<f64> {
            let one =
                |(value, guarded): (R, &bool)| if *guarded { f64::INFINITY } else { value.wide() };
            row.into_iter().zip(guarded).map(one).collect()
        };
        (leading, rows.into_iter().map(guard).collect())
    }

    /// Mean or maximum over the layers that have a sampled head of this KV head; the mean of all rows where none has.
    fn over_layers<R: Real>(&self, layers: &[Layer<R>], kv: usize) -> Vec<R> {
        let rows: Vec<&[R]> =
            layers.iter().filter_map(|layer| self.by_kv(layer).get(kv)?.as_deref()).collect();
        let all: Vec<&[R]> = layers.iter().flat_map(Layer::z_rows).collect();
        reduce(&rows, self.recipe.layers)
            .or_else(|| reduce(&all, Aggregation::Mean))
            .unwrap_or_default()
    }

    /// One block of rows per cached layer. A layer without statistics ranks all rows equal, so that its first ones stay.
    fn each_layer<R: Real>(
        &self,
        layers: &[Layer<R>],
        rows: impl Fn(&Layer<R>) -> Vec<Vec<R>>,
        per_layer: usize,
    ) -> Vec<Vec<R>> {
        let cols = self.rows - self.ranking.first;
        let block = |index: usize| {
            let slot = self.served.iter().position(|(at, _, _)| *at == index);
            slot.and_then(|slot| layers.get(slot))
                .map_or_else(|| vec![vec![R::ZERO; cols]; per_layer], &rows)
        };
        (0..self.layers).flat_map(block).collect()
    }

    fn layer_heads<R: Real>(&self, layer: &Layer<R>) -> Vec<Vec<R>> {
        let all: Vec<&[R]> = layer.z_rows().collect();
        let one = |row: &Option<Vec<R>>| {
            row.clone().or_else(|| reduce(&all, Aggregation::Mean)).unwrap_or_default()
        };
        self.by_kv(layer).iter().map(one).collect()
    }

    /// Rows by KV head after both the z-score and the group reduction, whichever came last.
    fn by_kv<'l, R>(&self, layer: &'l Layer<R>) -> &'l [Option<Vec<R>>] {
        match self.recipe.group_order {
            GroupOrder::AfterZ => &layer.group,
            GroupOrder::BeforeZ => &layer.z,
        }
    }

    fn choose(&self, (leading, rows): &(Vec<usize>, Vec<Vec<f64>>)) -> KeepSet {
        let first = self.ranking.first;
        let k = self.ranking.keep.saturating_sub(first);
        let one = |scores: &Vec<f64>| {
            let mut chosen = choose::best(scores, k, self.recipe.ties);
            if self.recipe.order == RowOrder::Ascending {
                chosen.sort_unstable();
            }
            (0..first).chain(chosen.into_iter().map(|row| row + first)).collect()
        };
        KeepSet { leading: leading.clone(), sets: rows.iter().map(one).collect() }
    }

    fn stages<R: Real>(
        &self,
        raw: &[LayerScores<R>],
        layers: &[Layer<R>],
        (leading, finals): (Vec<usize>, Vec<Vec<f64>>),
    ) -> Stages {
        let cols = self.rows - self.ranking.first;
        let cut = self.ranking.first - self.first_scored();
        let grid = |blocks: Vec<&[Option<Vec<R>>]>, cut: usize| {
            let heads = blocks.first().map_or(0, |block| block.len());
            let wide = |row: &Option<Vec<R>>| match row {
                Some(row) => row.iter().skip(cut).map(|value| value.wide()).collect(),
                None => vec![f64::NAN; cols],
            };
            let rows = blocks.iter().flat_map(|block| block.iter().map(wide)).collect();
            Grid::new(&[blocks.len(), heads], rows)
        };
        Stages {
            score_layers: self.score_layers(),
            score_heads: self.stats.heads().to_vec(),
            score_row_offset: self.ranking.first,
            raw: grid(raw.iter().map(Vec::as_slice).collect(), cut),
            z: grid(layers.iter().map(|layer| layer.z.as_slice()).collect(), 0),
            group: grid(layers.iter().map(|layer| layer.group.as_slice()).collect(), 0),
            final_scores: Grid::new(&leading, finals),
        }
    }
}

/// One layer after normalisation: z rows by scored head (or by KV head, where the group is reduced first), group rows by
/// KV head.
#[derive(Debug)]
struct Layer<R> {
    z: Vec<Option<Vec<R>>>,
    group: Vec<Option<Vec<R>>>,
}

impl<R: Real> Layer<R> {
    fn z_rows(&self) -> impl Iterator<Item = &[R]> {
        self.z.iter().flatten().map(Vec::as_slice)
    }
}

fn widest<'a, R: Real>(rows: impl Iterator<Item = &'a [R]>) -> Vec<R> {
    let rows: Vec<&[R]> = rows.collect();
    reduce(&rows, Aggregation::Max).unwrap_or_default()
}

fn draws(rows: usize, cols: usize) -> u64 {
    u64::try_from(rows.saturating_mul(cols)).unwrap_or(u64::MAX)
}

/// Noise values that one ranking of `cols` columns draws.
#[must_use]
pub fn noise_draws(recipe: &Recipe, stats: &HeadStats, cols: usize) -> u64 {
    let passes = if recipe.mode == SelectionMode::PerLayerPerHead { 2 } else { 1 };
    draws(stats.sampled().len(), cols).saturating_mul(passes)
}

/// The statistics a recipe scores with and their heads per KV head.
fn effective<'a>(
    recipe: &Recipe,
    stats: &'a HeadStats,
    heads: Heads,
) -> Result<(Cow<'a, HeadStats>, usize), SelectError> {
    let group = heads.group()?;
    match recipe.heads {
        HeadUse::PerHead => Ok((Cow::Borrowed(stats), group)),
        HeadUse::GroupMean => Ok((Cow::Owned(stats.averaged(group)?), 1)),
    }
}

fn serve(recipe: &Recipe, stats: &HeadStats, layers: &[u32]) -> Vec<(usize, u32, u32)> {
    let count = stats.layers().len().max(1);
    let one = |(index, number): (usize, &u32)| {
        let held = stats.sampled().iter().any(|(layer, _)| layer == number);
        let stand_in = || {
            let slot = usize::try_from(*number).unwrap_or(0) % count;
            stats.layers().get(slot).copied().filter(|_| recipe.layer_modulo)
        };
        let serving = if held { Some(*number) } else { stand_in() };
        serving.map(|serving| (index, *number, serving))
    };
    layers.iter().enumerate().filter_map(one).collect()
}
