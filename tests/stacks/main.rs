//! Stacks of real processes, walked by the kernel, are true: stacks of known programs, those that a witness
//! in the process finds, and those of programs as distributions build them.

mod deep;
mod fast_paths;
mod ground_truth;
mod java;
mod known;
mod late;
mod layouts;
mod mappings;
mod preemption;
mod python;
mod python_versions;
mod real_load;
mod return_probes;
mod runtimes;
mod stock_programs;
mod torture;
