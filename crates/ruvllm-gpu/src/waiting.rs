//! Waiting for a device: a thread blocks; in a page the stack is suspended, since the thread that waits is the one that has to hear
//! the browser.

#[cfg(not(all(target_family = "wasm", target_os = "unknown")))]
mod of_system {
    pub(crate) use pollster::block_on as until;

    /// Waits until everything that was submitted to the device's queue is done.
    pub(crate) fn for_device(device: &wgpu::Device, _queue: &wgpu::Queue) -> Result<(), wgpu::PollError> {
        device.poll(wgpu::PollType::wait_indefinitely()).map(drop)
    }
}

#[cfg(all(target_family = "wasm", target_os = "unknown"))]
mod of_page {
    use std::cell::RefCell;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::task::{Context, Poll, Wake, Waker};

    use js_sys::{Function, Promise};
    use wasm_bindgen::JsValue;

    thread_local! {
        /// Resolver of the promise that the suspended stack waits for; one stack is suspended at a time.
        static RESUME: RefCell<Option<Function>> = const { RefCell::new(None) };
    }

    /// The waker of the suspended stack.
    struct Resume;

    impl Wake for Resume {
        fn wake(self: Arc<Self>) {
            if let Some(resume) = RESUME.take() {
                // It resolves a promise, and throws nothing.
                let _ = resume.call0(&JsValue::UNDEFINED);
            }
        }
    }

    /// Returns what a future gives, with the stack suspended until then.
    ///
    /// # Panics
    /// If the call from JavaScript cannot be suspended: it has to be one that returns a promise.
    pub(crate) fn until<F: Future>(future: F) -> F::Output {
        let (mut future, waker) = (pin!(future), Waker::from(Arc::new(Resume)));
        let mut context = Context::from_waker(&waker);
        loop {
            // The promise is there before the future is polled, which may wake at once.
            let woken = Promise::new(&mut |resolve, _| RESUME.set(Some(resolve)));
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                RESUME.take();
                return output;
            }
            #[expect(deprecated, reason = "it is marked as experimental, and the version is pinned")]
            let resumed = js_sys::futures::jspi_block_on_promise(&woken);
            resumed.expect("a call that waits for the GPU returns a promise");
        }
    }

    /// Waits until everything that was submitted to the device's queue is done. A lost device counts as done.
    pub(crate) fn for_device(_device: &wgpu::Device, queue: &wgpu::Queue) -> Result<(), wgpu::PollError> {
        let done = Arc::new(AtomicBool::new(false));
        let (set, waker) = (done.clone(), Waker::from(Arc::new(Resume)));
        queue.on_submitted_work_done(move || {
            set.store(true, Relaxed);
            waker.wake();
        });
        until(poll_fn(|_| if done.load(Relaxed) { Poll::Ready(()) } else { Poll::Pending }));
        Ok(())
    }
}

#[cfg(not(all(target_family = "wasm", target_os = "unknown")))]
pub(crate) use of_system::{for_device, until};

#[cfg(all(target_family = "wasm", target_os = "unknown"))]
pub(crate) use of_page::{for_device, until};
