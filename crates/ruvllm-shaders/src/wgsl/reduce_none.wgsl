// Lanes of a kernel that reduces nothing.
struct Lane {
    @builtin(local_invocation_index) index: u32,
}
