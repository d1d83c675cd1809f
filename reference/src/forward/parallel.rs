//! Splitting elementwise work over threads.

use std::sync::Mutex;

/// Runs `work(start, block)` over consecutive blocks of `values`, `block` elements each (the last one shorter), on as
/// many threads as candle's matmul uses. Which thread takes which block does not influence any result.
pub(crate) fn for_blocks<T, F>(values: &mut [T], block: usize, work: F)
where
    T: Send,
    F: Fn(usize, &mut [T]) + Sync,
{
    let block = block.max(1);
    let blocks = values.len().div_ceil(block);
    let threads = candle_core::utils::get_num_threads().min(blocks);
    if threads <= 1 {
        for (index, chunk) in values.chunks_mut(block).enumerate() {
            work(index * block, chunk);
        }
        return;
    }
    let queue = Mutex::new(values.chunks_mut(block).enumerate());
    let next = || queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((index, chunk)) = next() {
                    work(index * block, chunk);
                }
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_visited_once_with_its_index() {
        let mut values = vec![0usize; 1003];
        for_blocks(&mut values, 10, |start, block| {
            for (offset, value) in block.iter_mut().enumerate() {
                *value += start + offset + 1;
            }
        });
        assert!(values.iter().enumerate().all(|(index, value)| *value == index + 1));
    }
}
