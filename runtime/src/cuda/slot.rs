//! The device's view of one sequence of a decode batch.

use bytemuck::{Pod, Zeroable};

/// `Slot` of `common.cuh`, field by field.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable, Default)]
pub struct Slot {
    /// Address of K, `[layers][kv_heads][capacity][head_dim]`.
    pub k_base: u64,
    /// Address of V.
    pub v_base: u64,
    /// Address of the rows' absolute positions, `[kv_heads][capacity]` (`[layers][kv_heads][capacity]` where layers differ); 0: not kept.
    pub positions: u64,
    /// Live rows before this step's row is appended.
    pub rows: u32,
    /// Rows from one head to the next.
    pub capacity: u32,
    /// Absolute position of the token fed.
    pub position: u32,
    /// Rotary index of the token fed.
    pub rope_index: u32,
    /// Token fed.
    pub token: u32,
    /// 0: an empty slot.
    pub active: u32,
    /// Layers that have positions of their own; 1: the first layer's serve all.
    pub position_layers: u32,
    /// Nothing.
    pub unused: u32,
}
