package cli

import (
	"fmt"
	"io"
	"strings"

	"octet/internal/writers"
	"octet/train"
)

// printLines writes the persistent memory by use, with the bytes per weight of the linear layers
// beside those of an optimizer in FP32, and the traffic between ranks.
func (p planned) printLines(w io.Writer) {
	fmt.Fprintf(w, "\npersistent, by use: for the %s weights of linear layers, and for the rest\n", writers.Count(p.LayerParameters))
	fmt.Fprintln(w, "bytes per weight\tfp32\there\tformat\tbytes\tsaved\trest")
	each := func(n int64) string { return fmt.Sprintf("%.2f", float64(n)/float64(max(1, p.LayerParameters))) }
	write := func(l train.Line) {
		fp32, saved, formats := "", "", strings.Join(l.Formats, " ")
		if len(l.Formats) > 2 {
			formats = "mixed"
		}
		if l.FP32 > 0 {
			fp32, saved = each(l.FP32), writers.Bytes(l.FP32-l.Layers)
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\n", l.Name, fp32, each(l.Layers), formats, writers.Bytes(l.Layers), saved, writers.Bytes(l.Rest))
	}
	sum := train.Line{Name: "sum"}
	for i, l := range p.Memory.Lines {
		if i == train.StateLines {
			write(sum)
		}
		write(l)
		sum.FP32, sum.Layers, sum.Rest = sum.FP32+l.FP32, sum.Layers+l.Layers, sum.Rest+l.Rest
	}
	if len(p.Traffic) == 0 {
		return
	}
	fmt.Fprintf(w, "\nsent by one rank in a step\tusual\there\n")
	total := train.Traffic{Name: "sum"}
	row := func(x train.Traffic) {
		usual, change := "", ""
		if x.Usual > 0 {
			usual, change = writers.Bytes(x.Usual), fmt.Sprintf("\t%+.1f %%", 100*(float64(x.Bytes)/float64(x.Usual)-1))
		}
		fmt.Fprintf(w, "  %s\t%s\t%s%s\n", x.Name, usual, writers.Bytes(x.Bytes), change)
	}
	for _, x := range p.Traffic {
		row(x)
		total.Bytes, total.Usual = total.Bytes+x.Bytes, total.Usual+x.Usual
	}
	row(total)
	fmt.Fprintln(w, "  usual: gradients are reduced in fp32 and weights gathered in bf16")
}
