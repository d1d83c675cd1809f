//! A model on the device, and a run's session with it.

mod any;
mod cache;
mod decode;
mod observe;
mod prefill;
mod session;
mod setup;
mod weights;

pub use crate::cuda::ops::sample::DeviceDraw as Drawn;
pub use any::{AnyModel, AnySession};
pub(crate) use cache::Store;
pub use cache::{DeviceCache, DeviceCacheShape};
pub use session::{DecodeRow, Model, PrefillChunk, RowOut, Session, SessionSetup};
pub use setup::DeviceOptions;
