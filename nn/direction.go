package nn

import (
	"math"

	"octet/backend"
	"octet/fp8"
)

// Unified INT8 training (arXiv 1912.12607) clips a gradient x at ±c before the cast, so that the
// direction changes least. With s = c/limit and x̂ = s·round(clip(x, ±c)/s), rounded
// stochastically, that is the distance
//
//	d(c) = 1 − x·x̂/(|x||x̂|)
//
// c is the best of amax·2^(−i/4), i < 16. The sums take the expected values over the random bits: x·E(x̂)
// and E(x̂²) = clip² + s²f(1−f), with f the fraction that truncation discards. In the paper a
// gradient descent finds c, once in some hundred steps; here every micro-batch searches the grid.

// clipCandidates is the number of values on the grid.
const clipCandidates = 16

// clipCandidate returns the value i of the grid.
func clipCandidate(amax float64, i int) float64 { return amax * math.Exp2(-float64(i)/4) }

// clips reports whether a tensor with this amax has a value to clip at.
func clips(amax float64) bool { return amax > 0 && amax <= math.MaxFloat32 }

// directionSums has the sums of each row of x = X/Amax: Σx², and for each candidate Σx·E(x̂) and ΣE(x̂²).
// They neither overflow nor underflow. All are 0 if the amax is 0 or not finite.
type directionSums struct {
	backend.Custom
	X    *backend.Tensor `op:"in"`
	Amax *backend.Tensor `op:"in"`  // F32 [1], of X
	Out  *backend.Tensor `op:"out"` // F32 [rows, directionWidth]

	Limit float32 // the largest code
}

const directionWidth = 1 + 2*clipCandidates

// Check implements backend.CustomOp.
func (o *directionSums) Check(c *backend.Check) {
	c.Plain("X", o.X)
	c.Vector("Amax", o.Amax, 1)
	c.Matrix("Out", o.Out, o.X.Rows(), directionWidth)
	c.That(o.Limit >= 1, "Limit is %v, expected 1 or more", o.Limit)
}

// Reference implements backend.CustomOp.
func (o *directionSums) Reference(a backend.Arguments) {
	sums, cols, amax := make([]float64, o.Out.Elems()), o.X.Cols(), a.Read(o.Amax)[0]
	for i, x := range a.Read(o.X) {
		if !clips(amax) {
			break
		}
		x /= amax
		row := sums[i/cols*directionWidth:]
		row[0] += x * x
		for j := range clipCandidates {
			c := clipCandidate(1, j)
			step := c / float64(o.Limit)
			y := min(max(x, -c), c)
			f := math.Abs(y)/step - math.Floor(math.Abs(y)/step)
			row[1+2*j] += x * y
			row[2+2*j] += y*y + step*step*f*(1-f)
		}
	}
	a.Store(o.Out, sums)
}

// Loop implements backend.Looped.
func (o *directionSums) Loop() backend.Loop {
	limit := float64(o.Limit)
	return backend.Loop{In: []*backend.Tensor{o.X, o.Amax}, Out: [][]backend.Cast{{{Out: o.Out}}}, WholeRows: true, F: func(out, in [][]float32) {
		amax, total := float64(in[1][0]), 0.0
		if !clips(amax) {
			clear(out[0])
			return
		}
		for _, v := range in[0] {
			x := float64(float64(v) / amax)
			total += float64(x * x)
		}
		out[0][0] = float32(total)
		for j := range clipCandidates {
			clip := clipCandidate(1, j)
			dot, square := sumsAt(in[0], 1/amax, clip, clip/limit)
			out[0][1+2*j], out[0][2+2*j] = float32(total-dot), float32(total+square)
		}
	}}
}

// sumsAt returns Σx² − Σx·E(x̂) and ΣE(x̂²) − Σx² of a row times scale, where x̂ is x clipped at clip
// and rounded stochastically to multiples of step. The variance of x̂ is step²·f(1−f), with f the
// fraction of |x|/step. f(1−f) = |u|(1−|u|), with u its distance from the nearest multiple.
func sumsAt(row []float32, scale, clip, step float64) (dot, square float64) {
	const nearest = 1 << 52 // a sum with it has no bits below the point
	perStep, noise := 1/step, 0.0
	for _, v := range row {
		x := float64(math.Abs(float64(v)) * scale)
		if x > clip {
			dot += float64(x * (x - clip))
			square -= float64((x - clip) * (x + clip))
			continue
		}
		t := float64(x * perStep)
		u := math.Abs(t - ((t + nearest) - nearest))
		noise += float64(u * (1 - u))
	}
	return dot, square + float64(step*step*noise)
}

// directionClip chooses the candidate with the smallest distance, the largest of equal ones. If
// the amax is 0 or not finite, Clip is the amax and Distance is 0.
type directionClip struct {
	backend.Custom
	Sums     *backend.Tensor `op:"in"`  // F32 [rows·directionWidth], of directionSums
	Amax     *backend.Tensor `op:"in"`  // F32 [1]
	Clip     *backend.Tensor `op:"out"` // F32 [1]
	Distance *backend.Tensor `op:"out"` // F32 [1]
}

// Check implements backend.CustomOp.
func (o *directionClip) Check(c *backend.Check) {
	c.Vector("Sums", o.Sums, o.Sums.Elems())
	c.That(o.Sums.Elems()%directionWidth == 0, "Sums is %s, expected a multiple of %d elements", o.Sums, directionWidth)
	for name, t := range map[string]*backend.Tensor{"Amax": o.Amax, "Clip": o.Clip, "Distance": o.Distance} {
		c.Vector(name, t, 1)
	}
}

// Reference implements backend.CustomOp.
func (o *directionClip) Reference(a backend.Arguments) {
	sums := make([]float32, o.Sums.Elems())
	for i, x := range a.Read(o.Sums) {
		sums[i] = float32(x)
	}
	clip, distance := chooseClip(sums, float32(a.Read(o.Amax)[0]))
	a.Store(o.Clip, []float64{float64(clip)})
	a.Store(o.Distance, []float64{float64(distance)})
}

// Loop implements backend.Looped.
func (o *directionClip) Loop() backend.Loop {
	return backend.Loop{In: []*backend.Tensor{o.Sums, o.Amax}, Out: [][]backend.Cast{{{Out: o.Clip}}, {{Out: o.Distance}}}, WholeRows: true, F: func(out, in [][]float32) {
		out[0][0], out[1][0] = chooseClip(in[0], in[1][0])
	}}
}

func chooseClip(sums []float32, amax float32) (clip, distance float32) {
	if !clips(float64(amax)) {
		return amax, 0
	}
	var total [directionWidth]float64
	for i, x := range sums {
		total[i%directionWidth] += float64(x)
	}
	best := math.Inf(1)
	for _, x := range total {
		if x-x != 0 { // not lost: the scale carries it
			return float32(math.NaN()), float32(math.NaN())
		}
	}
	for j := range clipCandidates {
		if d := 1 - total[1+2*j]/math.Sqrt(total[0]*total[2+2*j]); d < best {
			best, clip = d, float32(clipCandidate(float64(amax), j))
		}
	}
	return clip, float32(max(best, 0))
}

// clipDirection appends the choice of the value at which the cast c of x clips. amax is that of
// x, and r receives the distance.
func (p *Pass) clipDirection(c Copy, r *record, x, amax *backend.Tensor, name string) *backend.Tensor {
	sums := p.root.Temp(name+".direction", fp8.F32, x.Rows(), directionWidth)
	clip, distance := p.root.Temp(name+".clip", fp8.F32, 1), r.distance
	if p.Mode != Train {
		distance = p.root.Temp(name+".distance", fp8.F32, 1)
	}
	p.Add(&directionSums{X: x, Amax: amax, Out: sums, Limit: c.DType.Max()})
	p.Add(&directionClip{Sums: sums.Slice(sums.Name+".all", 0, sums.Elems()), Amax: amax, Clip: clip, Distance: distance})
	return clip
}

// Distances returns, by weight, the distance of its layer's dy in the last micro-batch, for layers
// with scaling [recipe.Direction]: F32 Stash [1]. Where dgrad and wgrad have different casts, it is
// that of the first.
func (b *Base) Distances() map[*Param]*backend.Tensor {
	of := map[*Param]*backend.Tensor{}
	for _, l := range b.linears {
		for _, r := range b.Scales.records {
			if r.distance != nil && r.slot == l.Scope+".grad" && of[l.weight] == nil {
				of[l.weight] = r.distance
			}
		}
	}
	return of
}
