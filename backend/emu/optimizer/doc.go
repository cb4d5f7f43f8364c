// Package optimizer has the two passes over all parameters of a training step's end:
// SumSquares, for the norm of the gradients, and AdamW, which updates master weights and
// moments in any format, from codes to codes. Begin with AdamW in adamw.go.
//
// Both cut tensors into spans by their shapes alone (span.go), so that results do not
// depend on the number of threads. Type State (state.go) loads and stores a state, and
// chooses its scale. For a master in F16 with moments in E4M3 and E5M2, AVX-512 kernels do both in
// registers (codes.go), and the first of AdamW's two visits skips blocks that cannot hold
// a new amax (bounds.go), by the Extents that the last run and SumSquares recorded.
package optimizer
