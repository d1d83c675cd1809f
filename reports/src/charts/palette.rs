//! Colours. The categorical ones are from the Okabe-Ito set, the scale is viridis: both stay apart for colour-blind readers,
//! and no figure tells things apart by colour alone.

/// An opaque colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rgb(pub(crate) u8, pub(crate) u8, pub(crate) u8);

impl Rgb {
    /// `#RRGGBB` as the SVG backend writes it.
    pub(crate) fn css(self) -> String {
        format!("#{:02X}{:02X}{:02X}", self.0, self.1, self.2)
    }
}

pub(crate) const PAPER: Rgb = Rgb(0xFF, 0xFF, 0xFF);
pub(crate) const INK: Rgb = Rgb(0x1B, 0x1E, 0x23);
pub(crate) const MUTED: Rgb = Rgb(0x5A, 0x63, 0x70);
pub(crate) const GRID: Rgb = Rgb(0xE4, 0xE7, 0xEB);
pub(crate) const AXIS: Rgb = Rgb(0x9A, 0xA3, 0xAE);
pub(crate) const SHADE: Rgb = Rgb(0xF1, 0xF3, 0xF6);
pub(crate) const DEPENDENT: Rgb = Rgb(0xFB, 0xF0, 0xE6);
pub(crate) const DROPPED: Rgb = Rgb(0xC9, 0xCF, 0xD6);
pub(crate) const BLUE: Rgb = Rgb(0x00, 0x72, 0xB2);
pub(crate) const VERMILION: Rgb = Rgb(0xD5, 0x5E, 0x00);
pub(crate) const GREEN: Rgb = Rgb(0x00, 0x9E, 0x73);
pub(crate) const PURPLE: Rgb = Rgb(0xB0, 0x50, 0x8C);
pub(crate) const ORANGE: Rgb = Rgb(0xE6, 0x9F, 0x00);
pub(crate) const SKY: Rgb = Rgb(0x56, 0xB4, 0xE9);
/// A cell without a figure.
pub(crate) const MISSING: Rgb = Rgb(0xEE, 0xF0, 0xF2);
/// A cell whose figure is exactly 0.
pub(crate) const ZERO: Rgb = Rgb(0xFE, 0xFE, 0xFE);

/// Colours of runs in order.
pub(crate) const RUNS: [Rgb; 6] = [BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY];

/// What each light colour becomes on a dark page.
pub(crate) const DARK: [(Rgb, Rgb); 14] = [
    (PAPER, Rgb(0x17, 0x1A, 0x1F)),
    (ZERO, Rgb(0x10, 0x12, 0x16)),
    (INK, Rgb(0xE8, 0xEA, 0xED)),
    (MUTED, Rgb(0xA4, 0xAD, 0xB9)),
    (GRID, Rgb(0x2C, 0x31, 0x38)),
    (AXIS, Rgb(0x6B, 0x74, 0x80)),
    (SHADE, Rgb(0x1F, 0x23, 0x29)),
    (DEPENDENT, Rgb(0x2E, 0x24, 0x1A)),
    (DROPPED, Rgb(0x4A, 0x52, 0x5C)),
    (MISSING, Rgb(0x24, 0x28, 0x2E)),
    (BLUE, Rgb(0x4D, 0xA3, 0xE0)),
    (VERMILION, Rgb(0xF2, 0x81, 0x33)),
    (GREEN, Rgb(0x2D, 0xC2, 0x97)),
    (PURPLE, Rgb(0xDB, 0x8F, 0xBF)),
];

/// Stops of viridis at 0, 1/8, ..., 1.
const VIRIDIS: [Rgb; 9] = [
    Rgb(0x44, 0x01, 0x54),
    Rgb(0x47, 0x2D, 0x7B),
    Rgb(0x3B, 0x52, 0x8B),
    Rgb(0x2C, 0x72, 0x8E),
    Rgb(0x21, 0x91, 0x8C),
    Rgb(0x28, 0xAE, 0x80),
    Rgb(0x5E, 0xC9, 0x62),
    Rgb(0xAD, 0xDC, 0x30),
    Rgb(0xFD, 0xE7, 0x25),
];

/// Colours of the scale; neighbouring cells of one step are drawn as one.
pub(crate) const SCALE_STEPS: usize = 32;

/// Colour of a share of the scale, 0 to 1, in [`SCALE_STEPS`] steps.
pub(crate) fn scale(share: f64) -> Rgb {
    let steps = SCALE_STEPS as f64;
    let step = (share.clamp(0.0, 1.0) * steps).floor().min(steps - 1.0);
    let place = step / (steps - 1.0) * (VIRIDIS.len() - 1) as f64;
    let low = place.floor();
    let part = place - low;
    let index = low as usize;
    let from = VIRIDIS.get(index).copied().unwrap_or(VIRIDIS[0]);
    let to = VIRIDIS.get(index + 1).copied().unwrap_or(from);
    let mix = |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * part).round() as u8;
    Rgb(mix(from.0, to.0), mix(from.1, to.1), mix(from.2, to.2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_runs_from_violet_to_yellow() {
        assert_eq!(scale(0.0), VIRIDIS[0]);
        assert_eq!(scale(-3.0), VIRIDIS[0]);
        assert_eq!(scale(1.0), VIRIDIS[8]);
        assert_eq!(scale(f64::NAN).css().len(), 7);
        assert_ne!(scale(0.4), scale(0.6));
    }

    #[test]
    fn no_two_light_colours_of_the_dark_table_are_one() {
        for (index, (light, _)) in DARK.iter().enumerate() {
            assert!(DARK[index + 1..].iter().all(|(other, _)| other != light));
        }
    }
}
