//! The emulator: kernels as C++, compiled by the machine's compiler and run on the host, so that their logic can be tested without
//! a GPU. Figures mean nothing here; bits may differ from a GPU's in the last place (exp, log, order inside a matrix instruction).
#![expect(
    unsafe_code,
    reason = "device memory is host memory behind plain addresses here, and kernels are C functions"
)]

use std::alloc::{Layout, alloc, dealloc};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use half::{bf16, f16};
use libloading::Library;
use lockstep_traces::DType;

use super::GpuError;
use super::cache;
use super::driver::{Block, DeviceInfo, Driver, Gemm, Handle, Shape};
use super::source::{EMULATE, Parameter, Program, kernels};

/// Tells apart the builds of one process.
static TURN: AtomicU64 = AtomicU64::new(0);

/// Kernels keep the state of their one running block in static memory: one at a time in a process.
static RUNNING: Mutex<()> = Mutex::new(());

type Entry = unsafe extern "C" fn(*const u32, *const u32, u32, *mut *mut c_void);

#[derive(Clone, Copy)]
struct Function {
    entry: Entry,
    parameters: usize,
}

/// What a recording holds.
enum Step {
    Launch { function: Handle, shape: Shape, arguments: Vec<u64> },
    Copy { from: u64, to: u64, bytes: usize },
    Fill { to: u64, byte: u8, bytes: usize },
    Gemm(Gemm),
}

#[derive(Default)]
pub(super) struct Emulated {
    info: Option<DeviceInfo>,
    compiler: String,
    /// Layout by address, to free by.
    memory: RefCell<BTreeMap<u64, Layout>>,
    /// Never unloaded: kernels keep static memory whose destructors would run then.
    libraries: RefCell<Vec<ManuallyDrop<Library>>>,
    functions: RefCell<Vec<Function>>,
    graphs: RefCell<Vec<Vec<Step>>>,
    recording: RefCell<Option<Vec<Step>>>,
    marks: RefCell<Vec<Instant>>,
}

impl Emulated {
    pub(super) fn open() -> Result<Self, GpuError> {
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".to_owned());
        let missing = GpuError::Missing {
            library: "a C++ compiler (CXX, g++)",
            remedy: "install g++; the emulator compiles the kernels with it",
        };
        let Ok(output) = Command::new(&compiler).arg("--version").output() else {
            return Err(missing);
        };
        let version = String::from_utf8_lossy(&output.stdout);
        let version = version.lines().next().unwrap_or_default().to_owned();
        let info = DeviceInfo {
            name: "emulator".to_owned(),
            arch: "emulated".to_owned(),
            sm_count: 4,
            shared_limit: 227 * 1024,
            memory: 1 << 34,
            driver: "none".to_owned(),
            compiler: version,
            emulated: true,
        };
        Ok(Self { info: Some(info), compiler, ..Self::default() })
    }

    /// Records `step` where a recording is under way.
    fn recorded(&self, step: impl FnOnce() -> Step) -> bool {
        let mut recording = self.recording.borrow_mut();
        let Some(steps) = recording.as_mut() else { return false };
        steps.push(step());
        true
    }

    fn compile(&self, program: &Program) -> Result<std::path::PathBuf, GpuError> {
        let fail = |log: String| GpuError::Compile {
            file: program.file.name,
            target: self.compiler.clone(),
            log: log.lines().take(12).collect::<Vec<_>>().join(" | "),
        };
        let mut text = program.text();
        text.push('\n');
        for kernel in kernels(program.file.text) {
            text.push_str("EMULATED_EXPORT(");
            text.push_str(kernel);
            text.push_str(")\n");
        }
        let mut options: Vec<String> =
            ["-std=c++20", "-O2", "-ffp-contract=fast", "-fPIC", "-shared", "-w", "-DEMULATED"]
                .iter()
                .map(|option| (*option).to_owned())
                .collect();
        options.extend(program.defines());
        let version = self.info().compiler.clone();
        let key = program.cache_key(&options, &format!("{version}{EMULATE}"));
        let io = |path: &std::path::Path| {
            let path = path.to_owned();
            move |source| GpuError::Io { path, source }
        };
        let target = cache::path(&key, "so").ok_or_else(|| {
            GpuError::unsupported("no folder for compiled kernels; set LOCKSTEP_CACHE to one")
        })?;
        if target.is_file() {
            return Ok(target);
        }
        let folder = target.parent().unwrap_or(std::path::Path::new("/"));
        std::fs::create_dir_all(folder).map_err(io(folder))?;
        let turn = TURN.fetch_add(1, Ordering::Relaxed);
        let work = folder.join(format!("{key}.{}.{turn}.build", std::process::id()));
        std::fs::create_dir_all(&work).map_err(io(&work))?;
        let (source, header, made) =
            (work.join("k.cpp"), work.join("emulate.h"), work.join("k.so"));
        std::fs::write(&source, text).map_err(io(&source))?;
        std::fs::write(&header, EMULATE).map_err(io(&header))?;
        let output = Command::new(&self.compiler)
            .args(&options)
            .arg("-I")
            .arg(&work)
            .arg("-o")
            .arg(&made)
            .arg(&source)
            .output()
            .map_err(io(&source))?;
        let result = if output.status.success() {
            std::fs::rename(&made, &target).map_err(io(&target)).map(|()| target)
        } else {
            Err(fail(String::from_utf8_lossy(&output.stderr).into_owned()))
        };
        let _ = std::fs::remove_dir_all(&work);
        result
    }

    fn run(&self, step: &Step) {
        match step {
            Step::Launch { function, shape, arguments } => {
                let mut values = arguments.clone();
                let mut pointers: Vec<*mut c_void> =
                    values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
                self.call(*function, shape, &mut pointers);
            }
            Step::Copy { from, to, bytes } => move_bytes(*from, *to, *bytes),
            Step::Fill { to, byte, bytes } => {
                // SAFETY: addresses come from `alloc` by checked views.
                unsafe { (*to as *mut u8).write_bytes(*byte, *bytes) };
            }
            Step::Gemm(gemm) => product(gemm),
        }
    }

    fn call(&self, function: Handle, shape: &Shape, arguments: &mut [*mut c_void]) {
        let function = self.functions.borrow()[usize::try_from(function).unwrap_or(usize::MAX)];
        debug_assert_eq!(function.parameters, arguments.len());
        let _one = RUNNING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // SAFETY: the entry was exported for this kernel; argument count and sizes were checked against its declaration.
        unsafe {
            (function.entry)(
                shape.grid.as_ptr(),
                shape.block.as_ptr(),
                shape.shared,
                arguments.as_mut_ptr(),
            );
        }
    }
}

fn move_bytes(from: u64, to: u64, bytes: usize) {
    // SAFETY: both come from `alloc` or a host buffer of the caller's, checked by it.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
}

/// Sums in f64, rounded once.
fn product(gemm: &Gemm) {
    let read = |address: u64, index: usize| -> f64 {
        // SAFETY: the caller checked the ranges of all three matrices.
        unsafe {
            match gemm.dtype {
                DType::F16 => f16::from_bits(*(address as *const u16).add(index)).to_f64(),
                DType::Bf16 => bf16::from_bits(*(address as *const u16).add(index)).to_f64(),
                _ => f64::from(*(address as *const f32).add(index)),
            }
        }
    };
    for row in 0..gemm.rows {
        for column in 0..gemm.columns {
            let sum: f64 = (0..gemm.inner)
                .map(|k| read(gemm.x, row * gemm.inner + k) * read(gemm.w, column * gemm.inner + k))
                .sum();
            let (index, sum) = (row * gemm.stride + column, sum as f32);
            // SAFETY: as above.
            unsafe {
                match gemm.dtype {
                    DType::F16 => *(gemm.c as *mut u16).add(index) = f16::from_f32(sum).to_bits(),
                    DType::Bf16 => *(gemm.c as *mut u16).add(index) = bf16::from_f32(sum).to_bits(),
                    _ => *(gemm.c as *mut f32).add(index) = sum,
                }
            }
        }
    }
}

impl Driver for Emulated {
    fn info(&self) -> &DeviceInfo {
        // `open` is the only constructor that hands one out.
        self.info.as_ref().unwrap_or_else(|| unreachable!("an emulator without identity"))
    }

    fn alloc(&self, bytes: usize) -> Result<u64, GpuError> {
        let memory = GpuError::Memory { wanted: bytes, free: 0, remedy: "use a smaller shape" };
        let Ok(layout) = Layout::from_size_align(bytes.max(16), 256) else { return Err(memory) };
        // SAFETY: the layout is not empty.
        let address = unsafe { alloc(layout) };
        if address.is_null() {
            return Err(memory);
        }
        // Nothing may be read that was not written: NaN in every element type.
        // SAFETY: just allocated.
        unsafe { address.write_bytes(0xff, layout.size()) };
        self.memory.borrow_mut().insert(address as u64, layout);
        Ok(address as u64)
    }

    fn free(&self, address: u64) {
        if let Some(layout) = self.memory.borrow_mut().remove(&address) {
            // SAFETY: allocated here with this layout and removed from the list.
            unsafe { dealloc(address as *mut u8, layout) };
        }
    }

    fn alloc_pinned(&self, bytes: usize) -> Result<*mut u8, GpuError> {
        self.alloc(bytes).map(|address| address as *mut u8)
    }

    fn free_pinned(&self, address: *mut u8, _: usize) {
        self.free(address as u64);
    }

    fn write(&self, to: u64, from: *const u8, bytes: usize) -> Result<(), GpuError> {
        self.copy(from as u64, to, bytes)
    }

    fn read(&self, from: u64, to: *mut u8, bytes: usize) -> Result<(), GpuError> {
        self.copy(from, to as u64, bytes)
    }

    fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<(), GpuError> {
        if !self.recorded(|| Step::Copy { from, to, bytes }) {
            move_bytes(from, to, bytes);
        }
        Ok(())
    }

    fn fill(&self, to: u64, byte: u8, bytes: usize) -> Result<(), GpuError> {
        let step = || Step::Fill { to, byte, bytes };
        if !self.recorded(step) {
            self.run(&step());
        }
        Ok(())
    }

    fn read_beside(&self, block: &Block, to: *mut u8) -> Result<(), GpuError> {
        for piece in 0..block.height {
            let from = block.from + (piece * block.pitch) as u64;
            move_bytes(from, to as u64 + (piece * block.width) as u64, block.width);
        }
        Ok(())
    }

    fn wait_beside(&self) -> Result<(), GpuError> {
        Ok(())
    }

    fn join_beside(&self) -> Result<(), GpuError> {
        Ok(())
    }

    fn synchronize(&self) -> Result<(), GpuError> {
        Ok(())
    }

    fn load(&self, program: &Program) -> Result<Handle, GpuError> {
        let path = self.compile(program)?;
        // SAFETY: a library that was compiled from the kernels; loading it runs no code of its own but static constructors.
        let library = unsafe { Library::new(&path) }.map_err(|error| GpuError::Compile {
            file: program.file.name,
            target: self.compiler.clone(),
            log: error.to_string(),
        })?;
        let mut libraries = self.libraries.borrow_mut();
        libraries.push(ManuallyDrop::new(library));
        Ok(libraries.len() as Handle - 1)
    }

    fn function(
        &self,
        module: Handle,
        program: &Program,
        kernel: &str,
    ) -> Result<Handle, GpuError> {
        let parameters: Vec<Parameter> = program.parameters(kernel)?;
        let libraries = self.libraries.borrow();
        let missing = || GpuError::NoKernel { file: program.file.name, kernel: kernel.to_owned() };
        let library = usize::try_from(module).ok().and_then(|index| libraries.get(index));
        let name = format!("launch_{kernel}\0");
        // SAFETY: every `launch_*` symbol has this signature (`EMULATED_EXPORT`); libraries are never unloaded before self.
        let entry = unsafe { library.ok_or_else(missing)?.get::<Entry>(name.as_bytes()) };
        let entry = *entry.map_err(|_| missing())?;
        let mut functions = self.functions.borrow_mut();
        functions.push(Function { entry, parameters: parameters.len() });
        Ok(functions.len() as Handle - 1)
    }

    fn launch(
        &self,
        function: Handle,
        shape: &Shape,
        arguments: &mut [*mut c_void],
    ) -> Result<(), GpuError> {
        let step = || {
            // SAFETY: each argument points to a word of eight bytes.
            let values = arguments.iter().map(|&value| unsafe { *value.cast::<u64>() }).collect();
            Step::Launch { function, shape: *shape, arguments: values }
        };
        if !self.recorded(step) {
            self.call(function, shape, arguments);
        }
        Ok(())
    }

    fn gemm(&self, gemm: &Gemm) -> Result<(), GpuError> {
        if !self.recorded(|| Step::Gemm(*gemm)) {
            product(gemm);
        }
        Ok(())
    }

    fn begin_capture(&self) -> Result<(), GpuError> {
        *self.recording.borrow_mut() = Some(Vec::new());
        Ok(())
    }

    fn end_capture(&self) -> Result<Handle, GpuError> {
        let steps = self.recording.borrow_mut().take().unwrap_or_default();
        let mut graphs = self.graphs.borrow_mut();
        graphs.push(steps);
        Ok(graphs.len() as Handle - 1)
    }

    fn launch_graph(&self, graph: Handle) -> Result<(), GpuError> {
        let graphs = self.graphs.borrow();
        let steps = usize::try_from(graph).ok().and_then(|index| graphs.get(index));
        for step in steps.into_iter().flatten() {
            self.run(step);
        }
        Ok(())
    }

    fn free_graph(&self, graph: Handle) {
        let mut graphs = self.graphs.borrow_mut();
        if let Some(steps) = usize::try_from(graph).ok().and_then(|index| graphs.get_mut(index)) {
            steps.clear();
        }
    }

    fn mark(&self) -> Result<Handle, GpuError> {
        let now = Instant::now();
        let mut marks = self.marks.borrow_mut();
        marks.push(now);
        Ok(marks.len() as Handle - 1)
    }

    fn elapsed(&self, from: Handle, to: Handle) -> Result<f32, GpuError> {
        let marks = self.marks.borrow();
        let at = |handle: Handle| usize::try_from(handle).ok().and_then(|index| marks.get(index));
        Ok(match (at(from), at(to)) {
            (Some(from), Some(to)) => (*to - *from).as_secs_f32() * 1e3,
            _ => 0.0,
        })
    }
}
