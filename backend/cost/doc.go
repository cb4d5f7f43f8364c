// Package cost predicts the time of a training step on machines that need not be present, and from
// it days, energy and price of a run. docs/planning.md compares predictions with published steps.
//
// NewStep lists the work of lowered programs, a Table describes devices and networks, and a
// Calibration holds what was measured on a device:
//
//	m, err := cost.Devices().Machine(cost.Cluster{Device: "h100", PerNode: 8, Nodes: 32}, "")
//	f, err := m.Forecast(cost.Training{Step: cost.NewStep(job.Runs(lowered)...), …})
//
// # Time of an op
//
// A measured curve gives the time of the ops of its Key. Without one, by class, with the names of
// Numbers and peak and share those of the operands' format:
//
//	GEMM            max(FLOPs / (peak·share·gemm·s), bytes / (bandwidth·copy_share))
//	attention       max(FLOPs / (bf16_peak·attention_…), bytes / (bandwidth·copy_share)) · rest
//	casts, AdamW    bytes / (bandwidth·copy_share)
//	other row ops   bytes / (bandwidth·copy_share) · rest
//
// FLOPs and bytes are those of backend.Cost. s is 1 without processors; with p of them it is
// x/(x+½) · K/(K+tile_k), where x = ⌈M/128⌉·⌈N/256⌉/p. launch is added to each op of these. A
// collective takes its latency and the time on the wire of a ring or an all-to-all, see
// rates.collective.
//
// # Overlap
//
// Ops on the compute queue run one after the other, collectives among them. A collective on the
// communication queue starts after the ops and the collectives before it; an op that uses its result
// waits. While the device computes, such collectives progress at the rate hidden.
//
// # Origin of numbers
//
// Every number is measured, published or assumed, and says by whom. A number without a source is an
// error (ErrNoData) where it is needed. A number may have a range, from which Band makes the range
// of the prediction.
package cost
