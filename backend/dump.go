package backend

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
)

// Dump writes the program as text, one line per node: scope, phase, op, its
// operands and its settings. Equal dumps mean equal programs, so the text is
// what Hash hashes and what golden files hold.
func (p *Program) Dump(w io.Writer) error {
	_, err := fmt.Fprintf(w, "program %s\n", p.Name())
	for _, n := range p.Nodes() {
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(w, n.String())
	}
	return err
}

// Hash is the SHA-256 of the dump, in hexadecimal.
func (p *Program) Hash() string {
	h := sha256.New()
	_ = p.Dump(h) // a hash takes any write
	return hex.EncodeToString(h.Sum(nil))
}

// String is the node's line in a dump.
func (n *Node) String() string { return n.format(describe, settings(reflect.ValueOf(n.Op).Elem(), "")) }

// describe is a tensor with everything that changes what an op does to it.
func describe(t *Tensor) string {
	s := t.String()
	if t.Block != PerTensor {
		s += "/" + t.Block.String()
	}
	if t.Base != nil {
		s += fmt.Sprintf("@%s+%d", t.Base.Name, t.Offset)
		if !t.Contiguous() {
			s += fmt.Sprintf("/%d", t.LD)
		}
	}
	return s
}

func (n *Node) format(name func(*Tensor) string, settings []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s", orDash(n.Scope), n.Phase, opType(n.Op))
	for _, o := range n.operands {
		mark := "="
		switch o.Access {
		case Out:
			mark = ":="
		case InOut:
			mark = "<>"
		}
		fmt.Fprintf(&b, " %s%s%s", o.Field, mark, name(o.Tensor))
	}
	for _, s := range settings {
		b.WriteString(" " + s)
	}
	if n.Queue != ComputeQueue {
		fmt.Fprintf(&b, " on %s", n.Queue)
	}
	return b.String()
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// settings lists the plain fields that are not zero, those of casts included.
func settings(v reflect.Value, prefix string) []string {
	var list []string
	for i := range v.NumField() {
		f, value := v.Type().Field(i), v.Field(i)
		switch {
		case f.Type == castType:
			list = append(list, settings(value, prefix+f.Name+".")...)
		case f.Type == castsType:
			for j := range value.Len() {
				list = append(list, settings(value.Index(j), fmt.Sprintf("%s%s[%d].", prefix, f.Name, j))...)
			}
		case f.Tag.Get("op") == "" && !value.IsZero():
			list = append(list, fmt.Sprintf("%s%s=%v", prefix, f.Name, value.Interface()))
		}
	}
	return list
}

// BlockUnit is one stretch of nodes of a block. Units of equal hash differ only
// in which tensors they touch: they can share one compiled unit bound to other
// addresses, and to other random streams, since those follow tensors' names.
type BlockUnit struct {
	Name       string
	First, End int // node indexes, both included
	Hash       string
}

// Blocks lists the program's block units in the order of the list.
func (p *Program) Blocks() []BlockUnit {
	var list []BlockUnit
	nodes := p.Nodes()
	for i := 0; i < len(nodes); i++ {
		if nodes[i].Block == "" {
			continue
		}
		first, end := blockExtent(nodes, i)
		list = append(list, BlockUnit{nodes[i].Block, first, end, unitHash(nodes[first : end+1])})
		i = end
	}
	return list
}

// unitHash hashes nodes with tensors renamed by first use.
func unitHash(nodes []*Node) string {
	alias := map[*Tensor]string{}
	h := sha256.New()
	for _, n := range nodes {
		anonymous := *n
		anonymous.Scope = ""
		withoutStreams := slices.DeleteFunc(settings(reflect.ValueOf(n.Op).Elem(), ""), func(s string) bool {
			return strings.Contains(s, ".Stream=")
		})
		fmt.Fprintln(h, anonymous.format(func(t *Tensor) string {
			if alias[t] == "" {
				alias[t] = fmt.Sprintf("t%d", len(alias))
			}
			// The strides, the scale's tiles and what is known of the elements are compiled in,
			// the address is not.
			return fmt.Sprintf("%s:%s%s/%s/%d/%v", alias[t], t.DType, shapeString(t.Shape), t.Block, t.LD, t.Value)
		}, withoutStreams))
	}
	return hex.EncodeToString(h.Sum(nil))
}
