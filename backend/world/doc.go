// Package world connects the ranks of a run: where each rank is, what the ranks tell each
// other beside the tensors that they exchange, and how they end together.
//
// [FromEnv] reads a process's [Place] from the environment that a launcher sets: torchrun,
// Slurm, MPI, Kubeflow Trainer. [Join] connects processes over TCP, [Local] goroutines of one
// process. Both return a [Group] for each rank, with the same methods and errors.
//
// A lost rank ends the run: the calls of all ranks fail with one [Lost], which names the
// rank and the cause. No rank continues without another, and no rank joins later.
package world
