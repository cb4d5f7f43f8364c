package conformance

import (
	"bytes"
	"fmt"
	"math"

	"octet/backend"
	"octet/backend/ref"
	"octet/fp8"
)

// Tolerances are relative errors ‖error‖/‖result‖ of an op's FP32 result, before casts.
const (
	exactly = 0
	// elementwise allows exp, erf, sin, √ and the few operations around them some units
	// in the last place of FP32 (2^-24 each).
	elementwise = 0x1p-20
	// anything is for scratch memory.
	anything = math.MaxFloat64
)

// summed is the tolerance of FP32 sums of k terms. The partial sum of j terms
// of random sign is about √j, each addition errs by 2^-25 of it, and the errors
// add up like √k: relative to the sum of about √k, 2^-25·√(k/2). This allows
// eight times as much, for other orders and truncating adders.
func summed(k int) float64 { return elementwise + 0x1p-22*math.Sqrt(float64(k)) }

// gemm is the tolerance of a GEMM over k. Hopper's FP8 units align 32 products at a time
// to 13 fraction bits, an error of about 2^-13 of the group's sum, and truncate their
// accumulator to 13 bits. With Promoted, at most four groups are added that way before
// an FP32 addition.
func gemm(operands fp8.DType, accum backend.Accum, k int) float64 {
	if !operands.IsQuantized() {
		return summed(k)
	}
	groups := (k + 31) / 32
	if accum == backend.Promoted {
		groups = min(groups, 4)
	}
	return summed(k) + 0x1p-12*float64(1+groups)
}

// compare compares every declared variable of the two backends.
func (b *fixture) compare(want *ref.Backend, got backend.Backend) error {
	for _, t := range b.declared {
		tolerance := b.tolerance[t]
		if tolerance == anything {
			continue
		}
		wanted, raw := make([]byte, t.Bytes()), make([]byte, t.Bytes())
		if err := want.Read(t, wanted); err != nil {
			return err
		}
		if err := got.Read(t, raw); err != nil {
			return err
		}
		if bytes.Equal(wanted, raw) {
			continue
		}
		reference, err := want.Values(t)
		if err != nil {
			return err
		}
		// The reference decodes the bytes of the backend under test.
		if err := want.Write(t, raw); err != nil {
			return err
		}
		values, err := want.Values(t)
		if err != nil {
			return err
		}
		if tolerance == exactly {
			err = compareExact(t, reference, values, raw)
		} else {
			err = compareNorm(t, reference, values, tolerance)
		}
		if err != nil {
			return fmt.Errorf("rank %d: %w", b.rank, err)
		}
	}
	return nil
}

// compareExact requires equal values, the signs of zeros included. A NaN in an FP8
// format must have the code 0x7f; in wider formats any NaN will do.
func compareExact(t *backend.Tensor, want, got []float64, raw []byte) error {
	wrong, first := 0, -1
	for i := range want {
		same := math.Float64bits(want[i]) == math.Float64bits(got[i])
		if math.IsNaN(want[i]) && math.IsNaN(got[i]) {
			same = !t.DType.IsQuantized() || raw[i] == 0x7f
		}
		if !same {
			if wrong++; first < 0 {
				first = i
			}
		}
	}
	if wrong == 0 {
		return nil
	}
	return fmt.Errorf("%s: %d of %d elements differ; the first, [%d, %d], is %v, expected exactly %v",
		t, wrong, len(want), first/t.Cols(), first%t.Cols(), got[first], want[first])
}

// compareNorm allows the error that tolerance causes in the stored result. An FP32
// difference δ moves an element across a rounding boundary with probability δ/ulp, and
// then by one ulp; the squared error is Σ δ·ulp ≤ ‖δ‖·‖ulp‖. compareNorm allows twice
// its root, and one changed code of the largest ulp, which may be the whole norm of a
// small tensor. So that a large element does not hide the others, it also limits the
// number of changed codes: to two plus twice the number expected for an evenly spread δ.
// A change of one value to another counts once, and equal values are expected to change in
// one way at most: results of operands with few values, such as FP8 codes, repeat, and many
// of them can be at one rounding boundary.
func compareNorm(t *backend.Tensor, want, got []float64, tolerance float64) error {
	var norm, diff, ulps, coarsest float64
	for i := range want {
		if finite(want[i]) != finite(got[i]) || !finite(want[i]) && !sameSpecial(want[i], got[i]) {
			return fmt.Errorf("%s: [%d, %d] is %v, expected %v", t, i/t.Cols(), i%t.Cols(), got[i], want[i])
		}
		if !finite(want[i]) {
			continue
		}
		unit := ulp(t.DType, want[i])
		norm += want[i] * want[i]
		diff += (got[i] - want[i]) * (got[i] - want[i])
		ulps += unit * unit
		coarsest = max(coarsest, unit)
	}
	norm, diff, ulps = math.Sqrt(norm), math.Sqrt(diff), math.Sqrt(ulps)
	delta := tolerance * norm
	if allowed := delta + 2*math.Sqrt(delta*ulps) + coarsest; diff > allowed {
		return fmt.Errorf("%s: the error is %.3g of the norm, allowed %.3g", t, diff/norm, allowed/norm)
	}
	flips, changes, likely := map[[2]float64]bool{}, map[float64]float64{}, 0.0
	for i := range want {
		if finite(want[i]) {
			changes[want[i]] += delta / math.Sqrt(float64(len(want))) / ulp(t.DType, want[i])
			if want[i] != got[i] {
				flips[[2]float64{want[i], got[i]}] = true
			}
		}
	}
	for _, expected := range changes {
		likely += min(1, expected)
	}
	if float64(len(flips)) > 2+2*likely {
		return fmt.Errorf("%s: %d different changes of a code among %d elements, expected about %.1f", t, len(flips), len(want), likely)
	}
	return nil
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

func sameSpecial(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) }

// ulp returns the distance from |x| to the next larger value of the format.
func ulp(d fp8.DType, x float64) float64 {
	if !d.IsFloat() {
		return 0
	}
	code := d.Nearest(float32(math.Abs(x)), fp8.Saturate)
	here := float64(d.Float32(code))
	if here >= float64(d.Max()) {
		code--
	}
	return float64(d.Float32(code+1)) - float64(d.Float32(code))
}
