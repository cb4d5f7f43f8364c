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

// Dump writes the program as text, one line per node: scope, phase, op, operands and
// settings. Equal dumps mean equal programs, so Hash and golden files use this text.
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

// Hash returns the SHA-256 of the dump, in hexadecimal.
func (p *Program) Hash() string {
	h := sha256.New()
	_ = p.Dump(h) // a hash never fails to write
	return hex.EncodeToString(h.Sum(nil))
}

// String returns the node's line in a dump.
func (n *Node) String() string { return n.format(describe, settings(reflect.ValueOf(n.Op).Elem(), "")) }

// describe formats a tensor with every property that affects an op.
func describe(t *Tensor) string {
	s := t.String()
	if t.Block != PerTensor {
		s += "/" + t.Block.String()
	}
	if t.Expand {
		s += "/expanded"
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
	fmt.Fprintf(&b, "%s %s %s", orDash(n.Scope), n.Phase, opPath(n.Op))
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
	if looped, ok := n.Op.(Looped); ok {
		if source := looped.Loop().CUDA; source != "" {
			fmt.Fprintf(&b, " CUDA=%x", sha256.Sum256([]byte(source)))
		}
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

// settings lists the non-zero plain fields, including those of casts.
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

// BlockUnit is a range of consecutive nodes of one block. Units of equal Hash differ
// only in their tensors. They can share one compiled unit, bound to other addresses
// and to other random streams, because streams depend on tensor names.
type BlockUnit struct {
	Name       string
	First, End int // node indexes, both included
	Hash       string
}

// Blocks lists the program's block units in program order.
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

// unitHash hashes nodes with their tensors numbered by first use.
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
			// Strides, scale blocks and known values are compiled in, addresses are not.
			return fmt.Sprintf("%s:%s%s/%s/%d/%v/%v", alias[t], t.DType, shapeString(t.Shape), t.Block, t.LD, t.Value, t.Expand)
		}, withoutStreams))
	}
	return hex.EncodeToString(h.Sum(nil))
}
