package sass

import (
	"errors"
	"math"
	"math/bits"

	"octet/fp8"
)

func compare[T int64 | uint64 | float64](mods []string, a, b T) bool {
	nan := a != a || b != b
	for _, m := range mods {
		switch m {
		case "LT":
			return a < b
		case "LE":
			return a <= b
		case "GT":
			return a > b
		case "GE":
			return a >= b
		case "EQ":
			return a == b
		case "NE":
			return a != b && !nan
		case "LTU":
			return nan || a < b
		case "LEU":
			return nan || a <= b
		case "GTU":
			return nan || a > b
		case "GEU":
			return nan || a >= b
		case "EQU":
			return nan || a == b
		case "NEU":
			return nan || a != b
		case "NAN":
			return nan
		case "NUM":
			return !nan
		}
	}
	return false
}

func combine(i *Instruction, a, b bool) bool {
	if i.has("OR") {
		return a || b
	}
	return a && b
}

// setP is the end of ISETP, FSETP and DSETP.
func (t *thread) setP(i *Instruction, v bool) {
	with := t.pred(i.args[4])
	t.setPred(i.args[0], combine(i, v, with))
	t.setPred(i.args[1], combine(i, !v, with))
}

func lut(table uint32, a, b, c uint32) (v uint32) {
	for n := range uint32(8) {
		if table>>n&1 == 0 {
			continue
		}
		x, y, z := a, b, c
		if n&4 == 0 {
			x = ^x
		}
		if n&2 == 0 {
			y = ^y
		}
		if n&1 == 0 {
			z = ^z
		}
		v |= x & y & z
	}
	return v
}

// wide is a word as a summand with its carry: -x is ~x and one.
func (t *thread) wide(o operand) uint64 {
	if o.neg {
		o.neg = false
		return uint64(^t.word(o)) + 1
	}
	return uint64(t.word(o))
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// carries splits the predicates off that an addition leaves behind its result.
func carries(i *Instruction) (out, in []operand) {
	in = i.args[1:]
	for len(in) > 0 && in[0].kind == predicate {
		out, in = append(out, in[0]), in[1:]
	}
	return out, in
}

func (t *thread) sum(i *Instruction, v uint64) {
	out, _ := carries(i)
	t.set(i.args[0], uint32(v))
	for n, p := range out {
		t.setPred(p, v>>32 > uint64(n))
	}
}

func extreme(i *Instruction, low bool, a, b uint32) uint32 {
	less := int32(a) < int32(b)
	if i.has("U32") {
		less = a < b
	}
	if less == low {
		return a
	}
	return b
}

func (t *thread) encode(i *Instruction, x float64) uint32 {
	f := float32(x)
	switch {
	case i.has("BF16"):
		return fp8.BF16.Nearest(f, fp8.Saturate)
	case i.has("E4M3"):
		return fp8.E4M3.Nearest(f, fp8.Saturate)
	case i.has("E5M2"):
		return fp8.E5M2.Nearest(f, fp8.Saturate)
	}
	return fp8.F16.Nearest(f, fp8.Saturate)
}

var errUnknown = errors.New("not known")

// step carries one instruction out. done says that the thread has ended.
func (t *thread) step(i *Instruction) (done bool, err error) {
	if !t.pred(i.guard) {
		return false, nil
	}
	a := i.args
	switch i.op {
	case "NOP", "BSSY", "BSYNC", "BREAK", "BAR", "WARPSYNC", "YIELD", "ENDCOLLECTIVE", "REDG", "RED", "DEPBAR", "MEMBAR":
	case "EXIT":
		return true, nil
	case "BRA":
		if i.has("DIV") {
			break
		}
		if a[0].kind == predicate && !t.pred(a[0]) {
			break
		}
		t.pc = a[len(a)-1].at
	case "BRX", "BRXU":
		t.pc = int(t.word(a[0])) / 16
	case "CALL":
		t.pc = a[len(a)-1].at
	case "RET":
		t.pc = int(t.word(a[0])) / 16
	case "S2R", "S2UR", "CS2R":
		t.set(a[0], map[string]uint32{"SR_TID.X": uint32(t.index), "SR_LANEID": uint32(t.index % 32)}[a[1].name])
		if i.op == "CS2R" {
			t.set64(a[0], 0)
		}
	case "MOV", "R2UR":
		t.set(a[0], t.word(a[len(a)-1]))
	case "LDC":
		v := t.constant(a[1], i.size())
		if i.has("64") {
			t.set64(a[0], v)
		} else {
			t.set(a[0], uint32(v))
		}
	case "IMAD":
		_, in := carries(i)
		x, y := t.word(in[0]), t.word(in[1])
		switch {
		case i.has("WIDE"):
			c := t.pair(in[2])
			if in[2].neg {
				c = -c
			}
			if i.has("U32") {
				t.set64(a[0], uint64(x)*uint64(y)+c)
			} else {
				t.set64(a[0], uint64(int64(int32(x))*int64(int32(y)))+c)
			}
		case i.has("HI") && i.has("U32"):
			t.set(a[0], uint32((uint64(x)*uint64(y)+t.pair(in[2]))>>32))
		case i.has("HI"):
			t.set(a[0], uint32((int64(int32(x))*int64(int32(y))+int64(t.pair(in[2])))>>32))
		case i.has("X"):
			t.sum(i, uint64(x*y)+t.wide(in[2])+bit(t.pred(in[3])))
		default:
			t.sum(i, uint64(x*y)+t.wide(in[2]))
		}
	case "IADD3", "VIADD":
		_, in := carries(i)
		v := uint64(0)
		for _, o := range in {
			if o.kind == predicate {
				v += bit(t.pred(o))
			} else {
				v += t.wide(o)
			}
		}
		t.sum(i, v)
	case "LEA":
		_, in := carries(i)
		x := uint64(t.word(in[0]))
		switch {
		case i.has("SX32"):
			sh := t.word(in[2])
			t.sum(i, uint64(uint32(uint64(int64(int32(x)))<<sh>>32))+t.wide(in[1])+bit(t.pred(in[3])))
		case i.has("HI"):
			v := uint64(uint32((x|uint64(t.word(in[2]))<<32)<<t.word(in[3])>>32)) + t.wide(in[1])
			if i.has("X") {
				v += bit(t.pred(in[4]))
			}
			t.sum(i, v)
		default:
			t.sum(i, uint64(uint32(x<<t.word(in[2])))+t.wide(in[1]))
		}
	case "SHF":
		v, n := uint64(t.word(a[1]))|uint64(t.word(a[3]))<<32, t.word(a[2])
		switch {
		case i.has("L") && i.has("HI"):
			t.set(a[0], uint32(v<<n>>32))
		case i.has("L"):
			t.set(a[0], uint32(v<<n))
		case i.has("S32") && i.has("HI"):
			t.set(a[0], uint32(int32(v>>32)>>min(n, 31)))
		case i.has("HI"):
			t.set(a[0], uint32(v>>32>>n))
		case i.has("S64"):
			t.set(a[0], uint32(int64(v)>>min(n, 63)))
		default:
			t.set(a[0], uint32(v>>n))
		}
	case "LOP3":
		out := operand{kind: predicate, at: truth}
		in := a
		if a[0].kind == predicate {
			out, in = a[0], a[1:]
		}
		v := lut(in[4].bits, t.word(in[1]), t.word(in[2]), t.word(in[3]))
		t.set(in[0], v)
		t.setPred(out, v != 0 || t.pred(in[5]))
	case "PLOP3":
		p := func(o operand) uint32 { return uint32(bit(t.pred(o))) }
		x, y, z := p(a[2]), p(a[3]), p(a[4])
		t.setPred(a[0], lut(a[5].bits, x, y, z)&1 != 0)
		t.setPred(a[1], lut(a[6].bits, x, y, z)&1 != 0)
	case "P2R":
		v := uint32(0)
		for n := range 7 {
			v |= uint32(bit(t.p[n])) << n
		}
		t.set(a[0], v&t.word(a[3]))
	case "PRMT":
		from, pick := uint64(t.word(a[1]))|uint64(t.word(a[3]))<<32, t.word(a[2])
		var v uint32
		for n := range 4 {
			s := pick >> (4 * n)
			b := uint32(from>>(s&7*8)) & 0xff
			if s&8 != 0 {
				b = uint32(int32(b<<24)>>31) & 0xff
			}
			v |= b << (8 * n)
		}
		t.set(a[0], v)
	case "ISETP":
		x, y := t.word(a[2]), t.word(a[3])
		var v, equal bool
		if i.has("U32") {
			v = compare(i.mods, uint64(x), uint64(y))
		} else {
			v = compare(i.mods, int64(int32(x)), int64(int32(y)))
		}
		if equal = x == y; i.has("EX") {
			low := t.pred(a[5])
			switch {
			case i.has("NE"):
				v = !equal || low
			default:
				v = equal && low || !equal && v
			}
		}
		t.setP(i, v)
	case "FSEL":
		if t.pred(a[3]) {
			t.setF32(a[0], t.f32(a[1]))
		} else {
			t.setF32(a[0], t.f32(a[2]))
		}
	case "SEL":
		if t.pred(a[3]) {
			t.set(a[0], t.word(a[1]))
		} else {
			t.set(a[0], t.word(a[2]))
		}
	case "VIMNMX":
		v := extreme(i, t.pred(a[3]), t.word(a[1]), t.word(a[2]))
		if i.has("RELU") {
			v = uint32(max(int32(v), 0))
		}
		t.set(a[0], v)
	case "VIMNMX3":
		low := t.pred(a[4])
		t.set(a[0], extreme(i, low, extreme(i, low, t.word(a[1]), t.word(a[2])), t.word(a[3])))
	case "VIADDMNMX":
		v := extreme(i, t.pred(a[4]), t.word(a[1])+t.word(a[2]), t.word(a[3]))
		if i.has("RELU") {
			v = uint32(max(int32(v), 0))
		}
		t.set(a[0], v)
	case "IABS":
		t.set(a[0], uint32(max(int32(t.word(a[1])), -int32(t.word(a[1])))))
	case "UFLO":
		t.set(a[0], uint32(bits.Len32(t.word(a[1]))-1))
	case "VOTE", "OTEU", "VOTEU":
		if a[0].kind == predicate {
			t.setPred(a[0], t.pred(a[1]))
		} else {
			t.set(a[0], uint32(bit(t.pred(a[len(a)-1]))))
		}
	case "REDUX":
		t.set(a[0], t.word(a[1]))
	case "SHFL":
		t.set(a[1], t.word(a[2]))
	case "B2R":
	case "FADD":
		t.setF32(a[0], t.f32(a[1])+t.f32(a[2]))
	case "FMUL":
		t.setF32(a[0], t.f32(a[1])*t.f32(a[2]))
	case "FFMA":
		v := math.FMA(t.f32(a[1]), t.f32(a[2]), t.f32(a[3]))
		if i.has("SAT") {
			v = min(max(v, 0), 1)
		}
		t.setF32(a[0], v)
	case "FMNMX":
		if t.pred(a[3]) {
			t.setF32(a[0], math.Min(t.f32(a[1]), t.f32(a[2])))
		} else {
			t.setF32(a[0], math.Max(t.f32(a[1]), t.f32(a[2])))
		}
	case "FSETP":
		t.setP(i, compare(i.mods, t.f32(a[2]), t.f32(a[3])))
	case "FCHK":
		t.setPred(a[0], false)
	case "DADD":
		t.setF64(a[0], t.f64(a[1])+t.f64(a[2]))
	case "DMUL":
		t.setF64(a[0], t.f64(a[1])*t.f64(a[2]))
	case "DFMA":
		t.setF64(a[0], math.FMA(t.f64(a[1]), t.f64(a[2]), t.f64(a[3])))
	case "DSETP":
		t.setP(i, compare(i.mods, t.f64(a[2]), t.f64(a[3])))
	case "MUFU":
		switch {
		case i.has("RCP64H"):
			t.set(a[0], uint32(math.Float64bits(1/math.Float64frombits(uint64(t.word(a[1]))<<32))>>32))
		case i.has("RSQ64H"):
			t.set(a[0], uint32(math.Float64bits(1/math.Sqrt(math.Float64frombits(uint64(t.word(a[1]))<<32)))>>32))
		case i.has("RCP"):
			t.setF32(a[0], 1/t.f32(a[1]))
		case i.has("RSQ"):
			t.setF32(a[0], 1/math.Sqrt(t.f32(a[1])))
		case i.has("EX2"):
			t.setF32(a[0], math.Exp2(t.f32(a[1])))
		case i.has("LG2"):
			t.setF32(a[0], math.Log2(t.f32(a[1])))
		default:
			return false, errUnknown
		}
	case "I2F":
		var v float64
		switch {
		case i.has("U64"):
			v = float64(t.pair(a[1]))
		case i.has("S64"):
			v = float64(int64(t.pair(a[1])))
		case i.has("U32"):
			v = float64(t.word(a[1]))
		default:
			v = float64(int32(t.word(a[1])))
		}
		f := float32(v)
		if i.has("RP") && float64(f) < v {
			f = math.Nextafter32(f, float32(math.Inf(1)))
		}
		if i.has("F64") {
			t.setF64(a[0], v)
		} else {
			t.set(a[0], math.Float32bits(f))
		}
	case "F2I":
		v := t.f32(a[1])
		if !i.has("TRUNC") {
			v = math.RoundToEven(v)
		}
		switch {
		case i.has("U64"):
			t.set64(a[0], uint64(v))
		case i.has("U32"):
			t.set(a[0], uint32(uint64(min(max(v, 0), math.MaxUint32))))
		default:
			t.set(a[0], uint32(int32(min(max(v, math.MinInt32), math.MaxInt32))))
		}
	case "F2F":
		if i.mods[0] == "F64" {
			t.setF64(a[0], t.f32(a[1]))
		} else {
			t.setF32(a[0], t.f64(a[1]))
		}
	case "FRND":
		round := math.RoundToEven
		if i.has("TRUNC") {
			round = math.Trunc
		}
		if i.has("F64") {
			t.setF64(a[0], round(t.f64(a[1])))
		} else {
			t.setF32(a[0], round(t.f32(a[1])))
		}
	case "HADD2": // .F32 d, -RZ, x.H0_H0: to FP32
		h := t.word(operand{kind: register, at: a[2].at}) >> (16 * max(a[2].half-1, 0)) & 0xffff
		t.set(a[0], math.Float32bits(fp8.F16.Float32(h)))
	case "HFMA2": // .MMA d, -RZ, RZ, x, y: a constant
		t.set(a[0], fp8.F16.Nearest(float32(a[3].float), fp8.Saturate)<<16|fp8.F16.Nearest(float32(a[4].float), fp8.Saturate))
	case "F2FP":
		switch {
		case i.has("UNPACK_B"):
			d := fp8.E4M3
			if i.has("E5M2") {
				d = fp8.E5M2
			}
			w := t.word(a[1])
			t.set(a[0], fp8.F16.Nearest(d.Float32(w&0xff), fp8.Saturate)|fp8.F16.Nearest(d.Float32(w>>8&0xff), fp8.Saturate)<<16)
		case i.has("PACK_AB_MERGE_C"):
			t.set(a[0], t.encode(i, t.f32(a[2]))|t.encode(i, t.f32(a[1]))<<8|t.word(a[3])<<16)
		default:
			t.set(a[0], t.encode(i, t.f32(a[2]))|t.encode(i, t.f32(a[1]))<<16)
		}
	case "LDG", "LD", "LDS", "LDL":
		at, size := t.address(a[1]), i.size()
		if i.op == "LDG" || i.op == "LD" {
			t.loaded += size
		}
		if size < 4 {
			t.set(a[0], t.load(i.op, at)>>(at%4*8)&(1<<(8*size)-1))
			break
		}
		for n := range size / 4 {
			t.set(operand{kind: register, at: a[0].at + n}, t.load(i.op, at+4*uint64(n)))
		}
	case "STG", "ST", "STS", "STL":
		at, size, m := t.address(a[0]), i.size(), t.space(i.op)
		if i.op == "STG" || i.op == "ST" {
			t.stored += size
		}
		if size < 4 {
			mask := uint32(1<<(8*size)-1) << (at % 4 * 8)
			m[at/4*4] = t.load("LD"+i.op[2:], at)&^mask | t.word(a[1])<<(at%4*8)&mask
			break
		}
		for n := range size / 4 {
			v := uint32(0)
			if a[1].at != zero {
				v = t.r[a[1].at+n]
			}
			m[at+4*uint64(n)] = v
		}
	case "ATOMS", "ATOM":
	default:
		return false, errUnknown
	}
	return false, nil
}
