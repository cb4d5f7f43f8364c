package cuda

import "octet/backend"

// row holds what this backend knows of a type of op.
type row struct {
	bind func(*binder, *backend.Node) ([]call, error)
	// blockScaled lists the operands, as fields of the op, that the kernels take with
	// block scales and with scales in E8M0.
	blockScaled []string
}

// ops holds the row of every op. The files that bind ops add them.
var ops backend.Table[row]

// implementNode adds an op. blockScaled becomes the field of its row.
func implementNode[O backend.Op](bind func(*binder, *backend.Node, O) ([]call, error), blockScaled ...string) struct{} {
	var op O
	return ops.Add(op, row{func(b *binder, n *backend.Node) ([]call, error) { return bind(b, n, n.Op.(O)) }, blockScaled})
}

// implement adds an op that is bound without its node.
func implement[O backend.Op](bind func(*binder, O) ([]call, error), blockScaled ...string) struct{} {
	return implementNode(func(b *binder, _ *backend.Node, o O) ([]call, error) { return bind(b, o) }, blockScaled...)
}

// implementShaped adds an op that binder.shaped binds to the kernels of a name, with this
// extent.
func implementShaped[O backend.Op](name string, extent func(O) []int) struct{} {
	return implement(func(b *binder, o O) ([]call, error) { return b.shaped(name, o, extent(o)...) })
}

// refuse adds an op of mixtures of experts, which has no kernels: see backend.Spec.Experts.
func refuse[O backend.Op]() struct{} {
	return implementNode(func(_ *binder, n *backend.Node, _ O) ([]call, error) {
		return nil, unsupported(n, "an op of mixtures of experts, which the kernels lack")
	})
}

var (
	_ = refuse[*backend.Route]()
	_ = refuse[*backend.RouteGrad]()
	_ = refuse[*backend.Gather]()
	_ = refuse[*backend.Combine]()
	_ = refuse[*backend.CombineGrad]()
)

// The ops whose calls depend on an extent alone, in the groups of the kernels' sources.
// The other ops are in bind_ops.go and collective.go.
var (
	_ = implementShaped("fill", func(o *backend.Fill) []int { return extent(o.Out) })
	_ = implementShaped("activation", func(o *backend.Activation) []int { return extent(o.X) })
	_ = implementShaped("activation_grad", func(o *backend.ActivationGrad) []int { return extent(o.DOut) })
	_ = implementShaped("epilogue", func(o *backend.Epilogue) []int { return extent(o.X) })

	_ = implementShaped("step_mu", func(o *backend.StepMu) []int { return []int{1, o.Mu.Elems()} })
	_ = implementShaped("push_history", func(o *backend.PushHistory) []int { return extent(o.History) })

	_ = implementShaped("rms_norm", func(o *backend.RMSNorm) []int { return extent(o.X) })
	_ = implementShaped("rms_norm_grad", func(o *backend.RMSNormGrad) []int { return extent(o.DOut) })
	_ = implementShaped("row_cosine", func(o *backend.RowCosine) []int { return extent(o.A) })

	_ = implementShaped("swiglu_amax", func(o *backend.SwiGLUAmax) []int { return extent(o.Up) })
	_ = implementShaped("swiglu_grad", func(o *backend.SwiGLUGrad) []int { return extent(o.DOut) })

	_ = implementShaped("embed", func(o *backend.Embed) []int { return []int{o.IDs.Elems(), o.Table.Cols(), o.Table.Rows()} })
	_ = implementShaped("embed_grad", func(o *backend.EmbedGrad) []int { return append(extent(o.DOut), o.DTable.Rows()) })
	_ = implementShaped("cache_write", func(o *backend.CacheWrite) []int { return append(extent(o.X), o.Cache.Rows()) })

	_ = implementShaped("softmax_stats", func(o *backend.SoftmaxStats) []int { return extent(o.Logits) })
	_ = implementShaped("sum", func(o *backend.Sum) []int { return []int{1, o.X.Elems()} })
)
