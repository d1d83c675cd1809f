//! An NVIDIA GPU through the driver API, NVRTC and cuBLAS, all loaded at run time.
#![expect(unsafe_code, reason = "the driver's interface is C; every call is made here")]

use std::cell::OnceCell;
use std::ffi::{CString, c_char, c_int, c_void};

use cudarc::cublas::sys as blas;
use cudarc::driver::{result, sys};
use cudarc::nvrtc::sys as nvrtc;
use lockstep_traces::DType;

use super::GpuError;
use super::cache;
use super::driver::{Block, DeviceInfo, Driver, Gemm, Handle, Shape};
use super::source::Program;

/// Arithmetic is stated, not left to defaults: fused multiply-adds, IEEE division and square root, subnormals kept.
pub(super) const OPTIONS: [&str; 5] =
    ["--std=c++17", "--fmad=true", "--prec-div=true", "--prec-sqrt=true", "--ftz=false"];

/// Workspace of cuBLAS, bytes: its own recommendation for this architecture.
const WORKSPACE: usize = 32 << 20;

/// Which libraries can be loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Libraries {
    /// `libcuda`.
    pub driver: bool,
    /// `libnvrtc`.
    pub nvrtc: bool,
    /// `libcublas`.
    pub cublas: bool,
}

/// Looks for the libraries without calling into them.
#[must_use]
pub fn libraries() -> Libraries {
    // SAFETY: each opens a library by name and closes it again.
    unsafe {
        Libraries {
            driver: sys::is_culib_present(),
            nvrtc: nvrtc::is_culib_present(),
            cublas: blas::is_culib_present(),
        }
    }
}

fn code(call: &'static str) -> impl FnOnce(result::DriverError) -> GpuError {
    move |error| GpuError::Driver { call, code: name_of(error) }
}

fn name_of(error: result::DriverError) -> String {
    error
        .error_name()
        .ok()
        .and_then(|name| name.to_str().ok())
        .map_or_else(|| format!("{:?}", error.0), str::to_owned)
}

/// One GPU, its primary context and two streams.
pub(super) struct Nvidia {
    info: DeviceInfo,
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    beside: sys::CUstream,
    blas: OnceCell<(blas::cublasHandle_t, u64)>,
}

impl Nvidia {
    pub(super) fn open(ordinal: usize) -> Result<Self, GpuError> {
        let found = libraries();
        if !found.driver {
            return Err(GpuError::Missing {
                library: "the NVIDIA driver (libcuda.so)",
                remedy: "install the driver of the GPU",
            });
        }
        if !found.nvrtc {
            return Err(GpuError::Missing {
                library: "NVRTC (libnvrtc.so)",
                remedy: "install the CUDA toolkit or its nvrtc package and put its folder in LD_LIBRARY_PATH",
            });
        }
        result::init().map_err(code("cuInit"))?;
        let ordinal = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        let device = result::device::get(ordinal).map_err(code("cuDeviceGet"))?;
        // SAFETY: `device` is one that the driver gave.
        let context = unsafe { result::primary_ctx::retain(device) }
            .map_err(code("cuDevicePrimaryCtxRetain"))?;
        // SAFETY: the context was just retained.
        unsafe { result::ctx::set_current(context) }.map_err(code("cuCtxSetCurrent"))?;
        let info = info(device)?;
        let create = || result::stream::create(result::stream::StreamKind::NonBlocking);
        let stream = create().map_err(code("cuStreamCreate"))?;
        let beside = create().map_err(code("cuStreamCreate"))?;
        let blas = OnceCell::new();
        Ok(Self { info, device, context, stream, beside, blas })
    }

    /// Makes the context the calling thread's.
    fn bind(&self) -> Result<(), GpuError> {
        // SAFETY: the context lives as long as self.
        unsafe { result::ctx::set_current(self.context) }.map_err(code("cuCtxSetCurrent"))
    }

    fn blas(&self) -> Result<blas::cublasHandle_t, GpuError> {
        if let Some((handle, _)) = self.blas.get() {
            return Ok(*handle);
        }
        if !libraries().cublas {
            return Err(GpuError::Missing {
                library: "cuBLAS (libcublas.so)",
                remedy: "install the CUDA toolkit or its cublas package and put its folder in LD_LIBRARY_PATH",
            });
        }
        let fail = |call| {
            move |error: cudarc::cublas::result::CublasError| GpuError::Blas {
                call,
                code: format!("{:?}", error.0),
            }
        };
        let handle = cudarc::cublas::result::create_handle().map_err(fail("create"))?;
        let workspace = self.alloc(WORKSPACE)?;
        // SAFETY: handle and stream are valid; the workspace is given back only after the handle is destroyed.
        unsafe {
            cudarc::cublas::result::set_stream(handle, self.stream.cast())
                .map_err(fail("set_stream"))?;
            blas::cublasSetWorkspace_v2(handle, workspace as *mut c_void, WORKSPACE)
                .result()
                .map_err(fail("set_workspace"))?;
        }
        let _ = self.blas.set((handle, workspace));
        Ok(handle)
    }

    fn compile(&self, program: &Program) -> Result<Vec<u8>, GpuError> {
        let mut options: Vec<String> = OPTIONS.iter().map(|option| (*option).to_owned()).collect();
        options.push(format!("--gpu-architecture={}", self.info.arch));
        options.extend(program.defines());
        let key = program.cache_key(&options, &format!("nvrtc {}", self.info.compiler));
        if let Some(cubin) = cache::read(&key, "cubin") {
            return Ok(cubin);
        }
        let fail = |log: String| GpuError::Compile {
            file: program.file.name,
            target: self.info.arch.clone(),
            log: log.lines().take(12).collect::<Vec<_>>().join(" | "),
        };
        let text = CString::new(program.text())
            .map_err(|_| fail("a NUL byte in the source".to_owned()))?;
        let name = CString::new(program.file.name).unwrap_or_default();
        let unit = cudarc::nvrtc::result::create_program(&text, Some(&name))
            .map_err(|error| fail(format!("{error:?}")))?;
        // SAFETY: `unit` was just created and is destroyed below, after its last use.
        unsafe {
            let compiled = cudarc::nvrtc::result::compile_program(unit, &options);
            let result = match compiled {
                Err(error) => {
                    let log = cudarc::nvrtc::result::get_program_log(unit).unwrap_or_default();
                    Err(fail(format!("{error:?}: {}", text_of(&log))))
                }
                Ok(()) => cubin(unit).map_err(|error| fail(format!("{error:?}"))),
            };
            let _ = cudarc::nvrtc::result::destroy_program(unit);
            let cubin = result?;
            cache::write(&key, "cubin", &cubin);
            Ok(cubin)
        }
    }
}

/// # Safety
/// `unit` is a program that compiled.
unsafe fn cubin(unit: nvrtc::nvrtcProgram) -> Result<Vec<u8>, cudarc::nvrtc::result::NvrtcError> {
    let mut size = 0_usize;
    // SAFETY: by the contract of this function; the buffer has the size that the library asked for.
    unsafe {
        nvrtc::nvrtcGetCUBINSize(unit, &raw mut size).result()?;
        let mut image = vec![0_u8; size];
        nvrtc::nvrtcGetCUBIN(unit, image.as_mut_ptr().cast::<c_char>()).result()?;
        Ok(image)
    }
}

fn text_of(log: &[c_char]) -> String {
    let bytes: Vec<u8> = log.iter().map(|&c| c.cast_unsigned()).take_while(|&c| c != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn info(device: sys::CUdevice) -> Result<DeviceInfo, GpuError> {
    use sys::CUdevice_attribute_enum as Attribute;
    let attribute = |which| {
        // SAFETY: the device is one that the driver gave.
        unsafe { result::device::get_attribute(device, which) }
            .map(|value| u32::try_from(value).unwrap_or(0))
            .map_err(code("cuDeviceGetAttribute"))
    };
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let (mut version, mut rtc) = (0, (0, 0));
    // SAFETY: each writes integers that live here.
    let memory = unsafe {
        sys::cuDriverGetVersion(&raw mut version).result().map_err(code("cuDriverGetVersion"))?;
        let _ = nvrtc::nvrtcVersion(&raw mut rtc.0, &raw mut rtc.1);
        result::device::total_mem(device).map_err(code("cuDeviceTotalMem"))?
    };
    Ok(DeviceInfo {
        name: result::device::get_name(device).map_err(code("cuDeviceGetName"))?,
        arch: format!("sm_{major}{minor}"),
        sm_count: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_limit: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        memory: memory as u64,
        driver: format!("{}.{}", version / 1000, version % 1000 / 10),
        compiler: format!("{}.{}", rtc.0, rtc.1),
        emulated: false,
    })
}

impl Drop for Nvidia {
    fn drop(&mut self) {
        let _ = self.bind();
        // SAFETY: nothing uses these afterwards; errors of a context that is going away are of no use.
        unsafe {
            if let Some((handle, workspace)) = self.blas.take() {
                let _ = cudarc::cublas::result::destroy_handle(handle);
                let _ = result::free_sync(workspace);
            }
            let _ = result::stream::destroy(self.stream);
            let _ = result::stream::destroy(self.beside);
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

/// An event as a handle.
fn event(handle: Handle) -> sys::CUevent {
    handle as sys::CUevent
}

impl Driver for Nvidia {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn alloc(&self, bytes: usize) -> Result<u64, GpuError> {
        self.bind()?;
        // SAFETY: the memory is handed out as an address only.
        match unsafe { result::malloc_sync(bytes) } {
            Ok(address) => Ok(address),
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let free = result::mem_get_info().map_or(0, |(free, _)| free);
                Err(GpuError::Memory {
                    wanted: bytes,
                    free,
                    remedy: "use a smaller batch, context or cache, or another GPU",
                })
            }
            Err(error) => Err(code("cuMemAlloc")(error)),
        }
    }

    fn free(&self, address: u64) {
        let _ = self.bind();
        // SAFETY: the address came from `alloc`; the driver waits for work that uses it.
        let _ = unsafe { result::free_sync(address) };
    }

    fn alloc_pinned(&self, bytes: usize) -> Result<*mut u8, GpuError> {
        self.bind()?;
        // SAFETY: the memory is handed out as an address only.
        unsafe { result::malloc_host(bytes, 0) }
            .map(<*mut c_void>::cast)
            .map_err(code("cuMemHostAlloc"))
    }

    fn free_pinned(&self, address: *mut u8, _: usize) {
        let _ = self.bind();
        // SAFETY: the address came from `alloc_pinned`; both streams are drained before it goes.
        unsafe {
            let _ = result::stream::synchronize(self.stream);
            let _ = result::stream::synchronize(self.beside);
            let _ = result::free_host(address.cast());
        }
    }

    fn write(&self, to: u64, from: *const u8, bytes: usize) -> Result<(), GpuError> {
        self.bind()?;
        // SAFETY: callers give ranges that they own and keep until the copy ends.
        unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, self.stream) }
            .result()
            .map_err(code("cuMemcpyHtoDAsync"))
    }

    fn read(&self, from: u64, to: *mut u8, bytes: usize) -> Result<(), GpuError> {
        self.bind()?;
        // SAFETY: as `write`.
        unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, self.stream) }
            .result()
            .map_err(code("cuMemcpyDtoHAsync"))
    }

    fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<(), GpuError> {
        self.bind()?;
        // SAFETY: callers give ranges that were checked against their buffers.
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.stream) }
            .map_err(code("cuMemcpyDtoDAsync"))
    }

    fn fill(&self, to: u64, byte: u8, bytes: usize) -> Result<(), GpuError> {
        self.bind()?;
        // SAFETY: as `copy`.
        unsafe { result::memset_d8_async(to, byte, bytes, self.stream) }
            .map_err(code("cuMemsetD8Async"))
    }

    fn read_beside(&self, block: &Block, to: *mut u8) -> Result<(), GpuError> {
        self.bind()?;
        // SAFETY: the event is used between its creation and its destruction; ranges are the callers' own.
        unsafe {
            let ready = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
                .map_err(code("cuEventCreate"))?;
            let queued = result::event::record(ready, self.stream).and_then(|()| {
                let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
                result::stream::wait_event(self.beside, ready, flags)?;
                let copy = sys::CUDA_MEMCPY2D {
                    srcXInBytes: 0,
                    srcY: 0,
                    srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
                    srcHost: std::ptr::null(),
                    srcDevice: block.from,
                    srcArray: std::ptr::null_mut(),
                    srcPitch: block.pitch,
                    dstXInBytes: 0,
                    dstY: 0,
                    dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
                    dstHost: to.cast(),
                    dstDevice: 0,
                    dstArray: std::ptr::null_mut(),
                    dstPitch: block.width,
                    WidthInBytes: block.width,
                    Height: block.height,
                };
                sys::cuMemcpy2DAsync_v2(&raw const copy, self.beside).result()
            });
            let _ = result::event::destroy(ready);
            queued.map_err(code("cuMemcpy2DAsync"))
        }
    }

    fn wait_beside(&self) -> Result<(), GpuError> {
        self.bind()?;
        // SAFETY: the stream lives as long as self.
        unsafe { result::stream::synchronize(self.beside) }.map_err(code("cuStreamSynchronize"))
    }

    fn join_beside(&self) -> Result<(), GpuError> {
        self.bind()?;
        // SAFETY: as `read_beside`.
        unsafe {
            let done = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
                .map_err(code("cuEventCreate"))?;
            let queued = result::event::record(done, self.beside).and_then(|()| {
                let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
                result::stream::wait_event(self.stream, done, flags)
            });
            let _ = result::event::destroy(done);
            queued.map_err(code("cuStreamWaitEvent"))
        }
    }

    fn synchronize(&self) -> Result<(), GpuError> {
        self.bind()?;
        // SAFETY: the stream lives as long as self.
        unsafe { result::stream::synchronize(self.stream) }.map_err(code("cuStreamSynchronize"))
    }

    fn load(&self, program: &Program) -> Result<Handle, GpuError> {
        self.bind()?;
        let image = self.compile(program)?;
        // SAFETY: the image is a cubin that NVRTC made for this architecture; the driver checks its header.
        unsafe { result::module::load_data(image.as_ptr().cast()) }
            .map(|module| module as Handle)
            .map_err(code("cuModuleLoadData"))
    }

    fn function(
        &self,
        module: Handle,
        program: &Program,
        kernel: &str,
    ) -> Result<Handle, GpuError> {
        self.bind()?;
        let missing = || GpuError::NoKernel { file: program.file.name, kernel: kernel.to_owned() };
        let name = CString::new(kernel).map_err(|_| missing())?;
        // SAFETY: the module was loaded by `load` and is never unloaded.
        let function = unsafe { result::module::get_function(module as sys::CUmodule, name) }
            .map_err(|_| missing())?;
        let limit = c_int::try_from(self.info.shared_limit).unwrap_or(c_int::MAX);
        let attribute =
            sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function was just found. Static shared memory counts towards the limit, so that less may be allowed.
        unsafe {
            let mut fixed = 0;
            sys::cuFuncGetAttribute(
                &raw mut fixed,
                sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
                function,
            )
            .result()
            .map_err(code("cuFuncGetAttribute"))?;
            result::function::set_function_attribute(function, attribute, limit - fixed)
                .map_err(code("cuFuncSetAttribute"))?;
        }
        Ok(function as Handle)
    }

    fn launch(
        &self,
        function: Handle,
        shape: &Shape,
        arguments: &mut [*mut c_void],
    ) -> Result<(), GpuError> {
        self.bind()?;
        // SAFETY: an all-zero attribute is valid memory for the union; the one field that is read is set.
        let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
        attribute.id =
            sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attribute.value.programmaticStreamSerializationAllowed = 1;
        let config = sys::CUlaunchConfig {
            gridDimX: shape.grid[0],
            gridDimY: shape.grid[1],
            gridDimZ: shape.grid[2],
            blockDimX: shape.block[0],
            blockDimY: shape.block[1],
            blockDimZ: shape.block[2],
            sharedMemBytes: shape.shared,
            hStream: self.stream,
            attrs: &raw mut attribute,
            numAttrs: u32::from(shape.overlap),
        };
        // SAFETY: number and sizes of the arguments were checked against the kernel's declaration, and pointers come from checked
        // views of live buffers, whose memory is given back only after the queue has drained.
        unsafe {
            sys::cuLaunchKernelEx(
                &raw const config,
                function as sys::CUfunction,
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
        .result()
        .map_err(code("cuLaunchKernelEx"))
    }

    fn gemm(&self, gemm: &Gemm) -> Result<(), GpuError> {
        self.bind()?;
        let handle = self.blas()?;
        let (one, zero) = (1.0_f32, 0.0_f32);
        let kind = match gemm.dtype {
            DType::F16 => blas::cudaDataType_t::CUDA_R_16F,
            DType::Bf16 => blas::cudaDataType_t::CUDA_R_16BF,
            _ => blas::cudaDataType_t::CUDA_R_32F,
        };
        let size = |value: usize| {
            c_int::try_from(value)
                .map_err(|_| GpuError::unsupported(format!("a matrix side of {value}")))
        };
        let (rows, columns) = (size(gemm.rows)?, size(gemm.columns)?);
        let (inner, stride) = (size(gemm.inner)?, size(gemm.stride)?);
        // Column-major: c^T [columns x rows] = w [inner x columns]^T * x [inner x rows].
        // SAFETY: addresses and sizes describe buffers that callers checked; scalars are read before the call returns.
        unsafe {
            cudarc::cublas::result::gemm_ex(
                handle,
                blas::cublasOperation_t::CUBLAS_OP_T,
                blas::cublasOperation_t::CUBLAS_OP_N,
                columns,
                rows,
                inner,
                (&raw const one).cast(),
                gemm.w as *const c_void,
                kind,
                inner,
                gemm.x as *const c_void,
                kind,
                inner,
                (&raw const zero).cast(),
                gemm.c as *mut c_void,
                kind,
                stride,
                blas::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                blas::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        }
        .map_err(|error| GpuError::Blas { call: "gemm_ex", code: format!("{:?}", error.0) })
    }

    fn begin_capture(&self) -> Result<(), GpuError> {
        self.bind()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as self.
        unsafe { result::stream::begin_capture(self.stream, mode) }
            .map_err(code("cuStreamBeginCapture"))
    }

    fn end_capture(&self) -> Result<Handle, GpuError> {
        self.bind()?;
        // SAFETY: the graph is destroyed once it has been instantiated.
        unsafe {
            let graph =
                result::stream::end_capture(self.stream).map_err(code("cuStreamEndCapture"))?;
            let mut executable = std::ptr::null_mut();
            let made = sys::cuGraphInstantiateWithFlags(&raw mut executable, graph, 0).result();
            let _ = result::graph::destroy(graph);
            made.map_err(code("cuGraphInstantiate"))?;
            Ok(executable as Handle)
        }
    }

    fn launch_graph(&self, graph: Handle) -> Result<(), GpuError> {
        self.bind()?;
        // SAFETY: the graph was made by `end_capture` and is not freed yet.
        unsafe { result::graph::launch(graph as sys::CUgraphExec, self.stream) }
            .map_err(code("cuGraphLaunch"))
    }

    fn free_graph(&self, graph: Handle) {
        let _ = self.bind();
        // SAFETY: as `launch_graph`; the driver keeps what still runs.
        let _ = unsafe { result::graph::exec_destroy(graph as sys::CUgraphExec) };
    }

    fn mark(&self) -> Result<Handle, GpuError> {
        self.bind()?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT)
            .map_err(code("cuEventCreate"))?;
        // SAFETY: event and stream are valid.
        unsafe { result::event::record(event, self.stream) }.map_err(code("cuEventRecord"))?;
        Ok(event as Handle)
    }

    fn elapsed(&self, from: Handle, to: Handle) -> Result<f32, GpuError> {
        self.bind()?;
        // SAFETY: both came from `mark`; neither is used again.
        unsafe {
            let _ = result::event::synchronize(event(to));
            let time = result::event::elapsed(event(from), event(to));
            let _ = result::event::destroy(event(from));
            let _ = result::event::destroy(event(to));
            time.map_err(code("cuEventElapsedTime"))
        }
    }
}
