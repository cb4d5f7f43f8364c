package sass

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Instruction is a line of nvdisasm.
type Instruction struct {
	guard operand // the predicate, or PT
	op    string  // "IMAD", without the U of the uniform datapath
	mods  []string
	args  []operand
	text  string
}

func (i *Instruction) has(mod string) bool { return slices.Contains(i.mods, mod) }

type kind uint8

const (
	immediate kind = iota
	register       // of a thread; 256 more are the uniform ones
	predicate      // likewise, from 8 on
	memory         // an address in memory, or in a bank of constants
	label
)

type operand struct {
	kind           kind
	at             int    // of a register, a predicate; the instruction of a label
	neg, abs, not  bool   // not is ~, or ! of a predicate
	half           int    // 1: H0_H0, 2: H1_H1
	bits           uint32 // of an immediate, or what is added to an address
	float          float64
	wide           bool // the address has 64 bits
	bank           int
	base, baseMore int // registers of an address
	name           string
}

const (
	zero        = 255 // RZ
	uniform     = 256
	uniformZero = uniform + 63
	truth       = 7 // PT
)

var (
	lineOf    = regexp.MustCompile(`^\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w)\s+)?([A-Z][A-Z0-9_.]*)\s*([^;]*?)\s*(?:\(\*.*\*\))?;`)
	labelOf   = regexp.MustCompile(`^(\S+):`)
	sectionOf = regexp.MustCompile(`^\.text\.(\S+):`)
	addressOf = regexp.MustCompile(`^(?:desc\[UR\d+\])?\[(.*)\]$`)
	bankOf    = regexp.MustCompile(`^c\[0x(\w)\]\[(.*)\]$`)
	registers = regexp.MustCompile(`^(UR|R|UP|P)(\d+|Z|T)$`)
)

// Parse reads what nvdisasm -c prints: the instructions of each kernel.
func Parse(text string) (map[string][]Instruction, error) {
	list, labels := map[string][]Instruction{}, map[string]map[string]int{}
	section := ""
	for line := range strings.Lines(text) {
		if m := sectionOf.FindStringSubmatch(line); m != nil {
			section = m[1]
			labels[section] = map[string]int{}
			continue
		}
		if m := labelOf.FindStringSubmatch(line); m != nil && section != "" {
			labels[section][m[1]] = len(list[section])
			continue
		}
		m := lineOf.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		i := Instruction{guard: operand{kind: predicate, at: truth}, text: strings.TrimSpace(line)}
		if m[2] != "" {
			i.guard = parseOperand(m[2])
		}
		i.mods = strings.Split(m[3], ".")
		i.op, i.mods = i.mods[0], i.mods[1:]
		if strings.HasPrefix(i.op, "U") && i.op != "UFLO" {
			i.op = i.op[1:]
		}
		if m[4] != "" {
			for field := range strings.SplitSeq(m[4], ", ") {
				i.args = append(i.args, parseOperand(field))
			}
		}
		if at, _ := strconv.ParseInt(m[1], 16, 64); int(at) != 16*len(list[section]) {
			return nil, fmt.Errorf("%s: %s is not instruction %d", section, i.text, len(list[section]))
		}
		list[section] = append(list[section], i)
	}
	for section, code := range list {
		for n := range code {
			for k := range code[n].args {
				if o := &code[n].args[k]; o.kind == label {
					o.at = labels[section][o.name]
				}
			}
		}
	}
	return list, nil
}

func parseOperand(s string) (o operand) {
	s = strings.TrimSpace(s)
	if strings.HasPrefix(s, "`(") {
		return operand{kind: label, name: s[2 : len(s)-1]}
	}
	if m := bankOf.FindStringSubmatch(s); m != nil {
		o = parseAddress(m[2])
		o.bank, _ = strconv.Atoi(m[1])
		return o
	}
	if m := addressOf.FindStringSubmatch(s); m != nil {
		return parseAddress(m[1])
	}
	special := s // SR_TID.X
	if rest, ok := strings.CutPrefix(s, "-"); ok && !strings.HasPrefix(rest, "0x") {
		s, o.neg = rest, true
	}
	if rest := strings.TrimLeft(s, "~!"); rest != s {
		s, o.not = rest, true
	}
	if rest := strings.ReplaceAll(s, "|", ""); rest != s {
		s, o.abs = rest, true
	}
	s = strings.TrimPrefix(s, "+")
	s, _, _ = strings.Cut(s, " ") // BRX R2 -0x190: the table counts from the kernel's start
	name, suffix, _ := strings.Cut(s, ".")
	if m := registers.FindStringSubmatch(name); m != nil {
		o.kind = register
		o.at, _ = strconv.Atoi(m[2])
		switch m[1] {
		case "R":
			if m[2] == "Z" {
				o.at = zero
			}
		case "UR":
			o.at += uniform
			if m[2] == "Z" {
				o.at = uniformZero
			}
		default:
			o.kind = predicate
			if m[2] == "T" {
				o.at = truth
			}
			if m[1] == "UP" {
				o.at += 8
			}
		}
		o.half = map[string]int{"H0_H0": 1, "H1_H1": 2}[suffix]
		return o
	}
	if strings.Contains(s, "0x") {
		v, _ := strconv.ParseInt(s, 0, 64)
		o.bits, o.float = uint32(v), float64(math.Float32frombits(uint32(v)))
		return o
	}
	switch s {
	case "INF":
		o.float = math.Inf(1)
	case "QNAN":
		o.float = math.NaN()
	default:
		var err error
		if o.float, err = strconv.ParseFloat(s, 64); err != nil {
			o.name = special
			return o
		}
	}
	if o.neg {
		o.float, o.neg = -o.float, false
	}
	o.bits = math.Float32bits(float32(o.float))
	return o
}

// parseAddress reads "R8.64+UR4+0x10".
func parseAddress(s string) operand {
	o := operand{kind: memory, base: zero, baseMore: zero}
	for part := range strings.SplitSeq(strings.ReplaceAll(s, "+-", "+ -"), "+") {
		part = strings.TrimSpace(part)
		if strings.Contains(part, "0x") {
			v, _ := strconv.ParseInt(part, 0, 64)
			o.bits = uint32(v)
			continue
		}
		r := parseOperand(part)
		if strings.Contains(part, ".64") {
			o.wide = true
		}
		if o.base == zero {
			o.base = r.at
		} else {
			o.baseMore = r.at
		}
	}
	return o
}
