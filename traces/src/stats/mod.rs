//! Calibration statistics of queries: `.pt` and safetensors.
