package conformance

import (
	"octet/backend"
	"octet/fp8"
)

// hadamard adds cases of all sizes, along rows and columns. The op is a chain of additions,
// so results are exact.
func (s *suite) hadamard() {
	for _, columns := range []bool{false, true} {
		along := "rows"
		if columns {
			along = "columns"
		}
		// shape returns rows × cols elements with groups along the rows or columns.
		shape := func(along, across int) (rows, cols int) {
			if columns {
				return along, across
			}
			return across, along
		}
		for size := 4; size <= backend.MaxHadamard; size *= 2 {
			for _, signs := range []uint16{0, 0xd7e8} {
				s.add(func(b *fixture) {
					rows, cols := shape(2*size, 33)
					x := b.outliers(b.normal("x", fp8.F32, rows, cols), 1e6)
					b.p.Add(&backend.Hadamard{
						X: x, Out: b.casts("f32", "out", rows, cols, exactly), Size: size, Columns: columns, Signs: signs,
					})
				}, "hadamard/%s/size%d/signs%x", along, size, signs)
			}
		}
		for _, style := range []string{"bf16", "fp8", "stochastic", "view"} {
			s.add(func(b *fixture) {
				rows, cols := shape(48, 70)
				b.p.Add(&backend.Hadamard{
					X: b.normal("x", fp8.BF16, rows, cols), Out: b.casts(style, "out", rows, cols, exactly),
					Size: 16, Columns: columns, Signs: 0xd7e8,
				})
			}, "hadamard/%s/%s", along, style)
		}
		s.add(func(b *fixture) {
			rows, cols := shape(128, 300) // more than one task
			b.p.Add(&backend.Hadamard{
				X: b.normal("x", fp8.F32, rows, cols), Control: b.control(), Out: b.casts("bf16", "out", rows, cols, exactly),
				Size: 64, Columns: columns,
			})
		}, "hadamard/%s/seed", along)
		s.add(func(b *fixture) {
			rows, cols := shape(16, 9)
			x := b.normal("x", fp8.F32, rows, cols)
			b.values[x][5], b.values[x][20] = inf, nan
			b.p.Add(&backend.Hadamard{X: x, Out: b.casts("f32", "out", rows, cols, exactly), Size: 8, Columns: columns})
		}, "hadamard/%s/nonfinite", along)
		s.add(func(b *fixture) {
			rows, cols := shape(32, 6)
			b.p.Add(&backend.Hadamard{
				X: b.gapped("x", fp8.BF16, rows, cols), Out: b.casts("view", "out", rows, cols, exactly), Size: 16, Columns: columns,
			})
		}, "hadamard/%s/views", along)
	}
}
