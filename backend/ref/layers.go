package ref

import (
	"fmt"
	"math"

	"octet/backend"
)

var _ = implementErr((*Backend).embed)

func (b *Backend) embed(o *backend.Embed) error {
	table, rows, cols := b.read(o.Table), o.Table.Rows(), o.Table.Cols()
	first, all := b.part(o.Split, o.Control, rows)
	var out []float64
	for t, id := range b.ints(o.IDs) {
		if id < 0 || id >= all {
			return fmt.Errorf("token %d has the id %d, outside %s", t, id, o.Table)
		}
		row := make([]float64, cols)
		if id -= first; id >= 0 && id < rows {
			copy(row, table[id*cols:])
		}
		out = append(out, row...)
	}
	b.cast(out, cols, o.Out)
	return nil
}

// part returns the index of the first of n rows, or columns, in the whole of which an op with Split has
// a part, and the size of the whole.
func (b *Backend) part(split backend.Group, control *backend.Tensor, n int) (first, all int) {
	if split.All() {
		return 0, n
	}
	return split.Index(int(b.control(control).Rank)) * n, split.Size * n
}

var _ = implementErr((*Backend).embedGrad)

func (b *Backend) embedGrad(o *backend.EmbedGrad) error {
	dOut, cols := b.read(o.DOut), o.DOut.Cols()
	dTable := make([]float64, o.DTable.Elems())
	if o.Accumulate {
		dTable = b.read(o.DTable)
	}
	first, all := b.part(o.Split, o.Control, o.DTable.Rows())
	for t, id := range b.ints(o.IDs) {
		if id < 0 || id >= all {
			return fmt.Errorf("token %d has the id %d, outside %s", t, id, o.DTable)
		}
		if id -= first; id < 0 || id >= o.DTable.Rows() {
			continue
		}
		for j := range cols {
			dTable[id*cols+j] += dOut[t*cols+j]
		}
	}
	b.store(o.DTable, dTable)
	return nil
}

var _ = implement((*Backend).add)

func (b *Backend) add(o *backend.Add) {
	out, other := b.read(o.A), b.read(o.B)
	for i := range out {
		out[i] += other[i%len(other)] // B may be one row
	}
	b.cast(out, o.A.Cols(), o.Out)
}

var _ = implement((*Backend).rmsNorm)

func (b *Backend) rmsNorm(o *backend.RMSNorm) {
	x, gain, cols := b.read(o.X), b.read(o.Gain), o.X.Cols()
	invRMS := make([]float64, o.X.Rows())
	for t := range invRMS {
		row := x[t*cols : (t+1)*cols]
		squares := 0.0
		for _, v := range row {
			squares += v * v
		}
		invRMS[t] = 1 / math.Sqrt(squares/float64(cols)+float64(o.Eps))
		for j := range row {
			row[j] *= invRMS[t] * gain[j]
		}
	}
	b.cast(x, cols, o.Out)
	if o.InvRMS != nil {
		b.store(o.InvRMS, invRMS)
	}
}

var _ = implement((*Backend).rmsNormGrad)

func (b *Backend) rmsNormGrad(o *backend.RMSNormGrad) {
	dOut, x, cols := b.read(o.DOut), b.read(o.X), o.X.Cols()
	gain, invRMS := b.read(o.Gain), b.read(o.InvRMS)
	dx := b.readOr(o.Residual, len(x), 0)
	dGain := make([]float64, cols)
	if o.Accumulate {
		dGain = b.read(o.DGain)
	}
	for t, inv := range invRMS {
		row := t * cols
		mean := 0.0
		for j := range cols {
			xHat := x[row+j] * inv
			mean += dOut[row+j] * gain[j] * xHat / float64(cols)
			dGain[j] += dOut[row+j] * xHat
		}
		for j := range cols {
			dx[row+j] += inv * (dOut[row+j]*gain[j] - x[row+j]*inv*mean)
		}
	}
	b.cast(dx, cols, o.DX)
	b.store(o.DGain, dGain)
}

var _ = implement((*Backend).rope)

func (b *Backend) rope(o *backend.Rope) {
	x, cols, half := b.read(o.X), o.X.Cols(), o.HeadDim/2
	position, frequency := int(b.control(o.Control).Position), o.Frequencies()
	for r := range o.X.Rows() {
		for head := 0; head < cols; head += o.HeadDim {
			for i := range half {
				angle := float64(position+r%o.Seq) * frequency[i]
				if o.Inverse {
					angle = -angle
				}
				sin, cos := math.Sincos(angle)
				at := r*cols + head + i
				first, second := x[at], x[at+half]
				x[at] = first*cos - second*sin
				x[at+half] = second*cos + first*sin
			}
		}
	}
	b.cast(x, cols, o.Out)
}

var _ = implementErr((*Backend).cacheWrite)

func (b *Backend) cacheWrite(o *backend.CacheWrite) error {
	x, cache, cols := b.stored(o.X), b.stored(o.Cache), o.X.Cols()
	n, capacity := o.X.Rows()/o.Batch, o.Cache.Rows()/o.Batch
	position := int(b.control(o.Control).Position)
	if position < 0 || position+n > capacity {
		return fmt.Errorf("%d rows from position %d do not fit the %d rows of each sequence in %s", n, position, capacity, o.Cache)
	}
	for s := range o.Batch {
		copy(cache[(s*capacity+position)*cols:], x[s*n*cols:(s+1)*n*cols])
	}
	b.put(o.Cache, cache)
	return nil
}
