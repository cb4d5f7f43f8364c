// Package sass counts what a kernel issues, without a GPU: it carries out the code of
// one block as NVIDIA's disassembler prints it, with the arguments that a step calls it
// with. A count of a loop's instructions would not do, because which of them are
// carried out depends on formats, casts and sizes.
//
// A warp issues an instruction once for its 32 threads, so one thread of each stands for
// it: what a warp issues more because its threads part is not counted. Memory is by
// words. Arithmetic is good enough for what branches ask of it; roundings that only
// results show are not all the hardware's. An instruction that is not known is an error.
package sass

import (
	"fmt"
	"math"
)

// Block is a block of threads of one kernel, the first of its grid.
type Block struct {
	Code     []Instruction
	Threads  int
	Constant map[int][]byte         // banks: 0 has the arguments, from 0x210 on, 2 the tables of branches
	Global   map[uint64]uint32      // words, by address
	Fill     func(at uint64) uint32 // those that Global does not have

	shared map[uint64]uint32
}

// Count is what the warps of a block issue, and the bytes of global memory that
// threads ask for.
type Count struct {
	Issued, Loaded, Stored int
}

// Run carries a block out.
func (b *Block) Run() (Count, error) {
	b.shared = map[uint64]uint32{}
	// All of the first warp, because its lanes write what all threads read in shared
	// memory, and one lane of each other one. They stop at barriers, like a block.
	var live []*thread
	for at := range b.Threads {
		if at < 32 || at%32 == 0 {
			t := &thread{block: b, index: at, local: map[uint64]uint32{}}
			t.p[truth], t.p[8+truth] = true, true
			live = append(live, t)
		}
	}
	var c Count
	for len(live) > 0 {
		var waiting []*thread
		for _, t := range live {
			done, err := t.run()
			if err != nil {
				return c, fmt.Errorf("thread %d: %s: %w", t.index, b.Code[t.pc-1].text, err)
			}
			if !done {
				waiting = append(waiting, t)
			} else if t.index%32 == 0 {
				c.Issued += t.issued
				c.Loaded += 32 * t.loaded
				c.Stored += 32 * t.stored
			}
		}
		live = waiting
	}
	return c, nil
}

const endless = 1 << 20 // instructions

// run carries a thread out to the next barrier, or to its end.
func (t *thread) run() (done bool, err error) {
	for {
		if t.pc >= len(t.block.Code) || t.issued > endless {
			return true, fmt.Errorf("the thread does not end")
		}
		i := &t.block.Code[t.pc]
		t.pc++
		t.issued++
		if done, err := t.step(i); done || err != nil || i.op == "BAR" {
			return done, err
		}
	}
}

// thread is what one thread of a block sees. Memory is by words.
type thread struct {
	r              [320]uint32
	p              [16]bool
	local          map[uint64]uint32
	block          *Block
	pc             int
	index          int // threadIdx.x
	issued         int
	loaded, stored int // bytes of global memory
}

func (t *thread) word(o operand) uint32 {
	var v uint32
	switch o.kind {
	case register:
		v = t.r[o.at]
	case predicate:
		if t.pred(o) {
			return 1
		}
		return 0
	case memory:
		v = uint32(t.constant(o, 4))
	default:
		v = o.bits
	}
	if o.not {
		v = ^v
	}
	if o.neg {
		v = -v
	}
	return v
}

func (t *thread) set(o operand, v uint32) {
	if o.at != zero && o.at != uniformZero {
		t.r[o.at] = v
	}
}

func (t *thread) set64(o operand, v uint64) {
	t.set(o, uint32(v))
	if o.at != zero && o.at != uniformZero {
		t.r[o.at+1] = uint32(v >> 32)
	}
}

func (t *thread) pred(o operand) bool { return t.p[o.at] != o.not }
func (t *thread) setPred(o operand, v bool) {
	if o.at%8 != truth {
		t.p[o.at] = v
	}
}

func (t *thread) pair(o operand) uint64 {
	switch {
	case o.kind == register && o.at != zero && o.at != uniformZero:
		return uint64(t.r[o.at]) | uint64(t.r[o.at+1])<<32
	case o.kind == memory:
		return t.constant(o, 8)
	case o.kind == immediate:
		return uint64(int64(int32(o.bits)))
	}
	return 0
}

func sign(o operand, v float64) float64 {
	if o.abs {
		v = math.Abs(v)
	}
	if o.neg {
		v = -v
	}
	return v
}

func (t *thread) f32(o operand) float64 {
	if o.kind == immediate {
		return float64(float32(o.float))
	}
	raw := o
	raw.neg = false
	return sign(o, float64(math.Float32frombits(t.word(raw))))
}

func (t *thread) f64(o operand) float64 {
	if o.kind == immediate {
		return o.float
	}
	return sign(o, math.Float64frombits(t.pair(o)))
}

func (t *thread) setF32(o operand, v float64) { t.set(o, math.Float32bits(float32(v))) }
func (t *thread) setF64(o operand, v float64) { t.set64(o, math.Float64bits(v)) }

func (t *thread) constant(o operand, size int) uint64 {
	at := int(int32(t.r[o.base] + o.bits))
	var v uint64
	for i := range size {
		if b := t.block.Constant[o.bank]; at+i >= 0 && at+i < len(b) {
			v |= uint64(b[at+i]) << (8 * i)
		}
	}
	return v
}

func (t *thread) address(o operand) uint64 {
	if o.wide {
		a := t.pair(operand{kind: register, at: o.base}) + uint64(int64(int32(o.bits)))
		if o.baseMore != zero {
			a += t.pair(operand{kind: register, at: o.baseMore})
		}
		return a
	}
	return uint64(t.r[o.base] + t.r[o.baseMore] + o.bits)
}

// size is the width of an access in bytes.
func (i *Instruction) size() int {
	for _, m := range i.mods {
		switch m {
		case "U8", "S8":
			return 1
		case "U16", "S16":
			return 2
		case "64":
			return 8
		case "128":
			return 16
		}
	}
	return 4
}

func (t *thread) space(op string) map[uint64]uint32 {
	switch op[2:] {
	case "S":
		return t.block.shared
	case "L":
		return t.local
	}
	return t.block.Global
}

func (t *thread) load(op string, at uint64) uint32 {
	m := t.space(op)
	if v, ok := m[at/4*4]; ok {
		return v
	}
	if op == "LD" || op == "LDG" {
		return t.block.Fill(at / 4 * 4)
	}
	return 0
}
