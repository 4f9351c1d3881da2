//! Loads the driver of the machine that runs the tests, whichever it is.

use bursar_core::Driver;
use bursar_cuda::{Cuda, LoadError, Version};

#[test]
fn d1_loading_is_an_answer_on_any_machine() {
    match Cuda::load() {
        Ok(cuda) => {
            assert!(cuda.device_count() > 0);
            assert!(cuda.version() >= Version::NEEDED);
            assert_eq!(cuda.describe(), format!("CUDA driver {}", cuda.version()));
        }
        Err(error @ LoadError::NotFound { .. }) => {
            assert_eq!(error.to_string(), "no CUDA driver: looked for libcuda.so.1, libcuda.so");
        }
        Err(error) => assert!(error.to_string().contains("CUDA"), "{error}"),
    }
}
