//! A module in its sandbox: no imports, bounded memory, bounded time.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use wasmtime::{
    Config, Engine, Instance, Memory, Module, Store, StoreLimits, StoreLimitsBuilder, Trap, TypedFunc, WasmParams,
    WasmResults,
};

use crate::error::{PackError, PackErrorKind};

/// Most bytes of a module's memory.
pub const MEMORY_BYTES_MAX: usize = 256 << 20;
/// Longest time of one call.
pub const CALL_TIME_MAX: Duration = Duration::from_secs(2);
/// Distance of the points in time at which calls may be ended.
const TICK: Duration = Duration::from_millis(20);
/// Entries of a module's tables.
const TABLE_ENTRIES_MAX: usize = 1 << 16;

/// A module that runs.
pub(crate) struct Sandbox {
    store: Store<StoreLimits>,
    instance: Instance,
    memory: Memory,
    _clock: Arc<Clock>,
}

/// Moves the engine's time on as long as it lives.
struct Clock(#[expect(dead_code, reason = "the thread ends when it is dropped")] Sender<()>);

impl Clock {
    fn start(engine: Engine) -> Clock {
        let (end, ended) = mpsc::channel();
        let tick = move || {
            while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                engine.increment_epoch();
            }
        };
        thread::spawn(tick);
        Clock(end)
    }
}

/// Returns the settings of all modules: the instructions of WebAssembly 2 with SIMD, whose results are the same on every machine.
fn config() -> Config {
    let mut config = Config::new();
    config.epoch_interruption(true).relaxed_simd_deterministic(true);
    config
}

/// A compiled module, from which any number of sandboxes are made.
#[derive(Clone)]
pub(crate) struct Compiled {
    module: Module,
    clock: Arc<Clock>,
}

impl Compiled {
    /// Compiles a module.
    ///
    /// # Errors
    /// With kind `Sandbox` for what is no module, or imports something.
    pub(crate) fn new(module: &[u8]) -> Result<Compiled, PackError> {
        let engine = Engine::new(&config()).map_err(refused)?;
        let module = Module::from_binary(&engine, module).map_err(|error| refused(error).within("the module"))?;
        if let Some(import) = module.imports().next() {
            let line = format!("the module imports {}.{}; packs import nothing", import.module(), import.name());
            return Err(PackError::new(PackErrorKind::Sandbox, line));
        }
        Ok(Compiled { module, clock: Arc::new(Clock::start(engine)) })
    }
}

impl Sandbox {
    /// Starts a module.
    ///
    /// # Errors
    /// With kind `Sandbox` for one that has no memory, or takes too much.
    pub(crate) fn start(compiled: &Compiled) -> Result<Sandbox, PackError> {
        let limits = StoreLimitsBuilder::new()
            .memory_size(MEMORY_BYTES_MAX)
            .table_elements(TABLE_ENTRIES_MAX)
            .instances(1)
            .memories(1)
            .tables(1)
            .trap_on_grow_failure(true)
            .build();
        let mut store = Store::new(compiled.module.engine(), limits);
        store.limiter(|limits| limits);
        store.set_epoch_deadline(deadline());
        let instance = Instance::new(&mut store, &compiled.module, &[]).map_err(refused)?;
        let none = || PackError::new(PackErrorKind::Sandbox, "the module exports no 'memory'");
        let memory = instance.get_memory(&mut store, "memory").ok_or_else(none)?;
        Ok(Sandbox { store, instance, memory, _clock: Arc::clone(&compiled.clock) })
    }

    /// Returns an exported function.
    ///
    /// # Errors
    /// With kind `Sandbox` if there is none of this name and type.
    pub(crate) fn function<P: WasmParams, R: WasmResults>(&mut self, name: &str) -> Result<TypedFunc<P, R>, PackError> {
        let found = self.instance.get_typed_func(&mut self.store, name);
        found.map_err(|_| {
            PackError::new(
                PackErrorKind::Sandbox,
                format_args!("the module exports no '{name}' as the interface has it"),
            )
        })
    }

    /// Calls a function, which has its time.
    ///
    /// # Errors
    /// With kind `Sandbox` if it takes too long, too much memory, or fails.
    pub(crate) fn call<P: WasmParams, R: WasmResults>(
        &mut self,
        function: &TypedFunc<P, R>,
        parameters: P,
    ) -> Result<R, PackError> {
        self.store.set_epoch_deadline(deadline());
        function.call(&mut self.store, parameters).map_err(refused)
    }

    /// Writes bytes to the module's memory.
    ///
    /// # Errors
    /// With kind `Sandbox` if they do not fit.
    pub(crate) fn write(&mut self, address: u32, bytes: &[u8]) -> Result<(), PackError> {
        self.memory.write(&mut self.store, address as usize, bytes).map_err(|_| outside(address))
    }

    /// Reads bytes of the module's memory.
    ///
    /// # Errors
    /// As [`Sandbox::write`].
    pub(crate) fn read(&self, address: u32, bytes: &mut [u8]) -> Result<(), PackError> {
        self.memory.read(&self.store, address as usize, bytes).map_err(|_| outside(address))
    }
}

/// Returns the ticks that a call may take.
fn deadline() -> u64 {
    (CALL_TIME_MAX.as_millis() / TICK.as_millis()) as u64 + 1
}

fn outside(address: u32) -> PackError {
    PackError::new(
        PackErrorKind::Sandbox,
        format_args!("the module reserved room at {address}, which its memory does not have"),
    )
}

/// Says in one line why the sandbox ended something.
fn refused(error: wasmtime::Error) -> PackError {
    let line = match error.downcast_ref::<Trap>() {
        Some(Trap::Interrupt) => format!("a call took longer than {} s", CALL_TIME_MAX.as_secs()),
        Some(Trap::StackOverflow) => "a call used up its stack".to_owned(),
        Some(trap) => format!("the module failed: {trap}"),
        None => {
            let cause = error.chain().last().map_or_else(|| error.to_string(), ToString::to_string);
            let is_memory = cause.contains("memory") && (cause.contains("limit") || cause.contains("grow"));
            match is_memory {
                true => format!("the module wants more than {} MiB of memory", MEMORY_BYTES_MAX >> 20),
                false => cause.lines().next().unwrap_or("unknown").to_owned(),
            }
        }
    };
    PackError::new(PackErrorKind::Sandbox, line)
}
