//! TensorRT-Model-Connect: step trace, keep dump, binary dumps.
