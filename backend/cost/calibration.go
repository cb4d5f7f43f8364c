package cost

// Calibration holds curves that were measured on a device.
type Calibration struct {
	Curves map[string]Curve
}

// Curve is the time of an op: Overhead + FLOPs·PerFLOP + bytes·PerByte, in seconds.
type Curve struct {
	Overhead, PerFLOP, PerByte float64
}

func (c *Calibration) curve(key string) (Curve, bool) { x, ok := c.Curves[key]; return x, ok }

func (c Curve) time(flops, bytes float64) (float64, Bound) {
	f, b := flops*c.PerFLOP, bytes*c.PerByte
	switch {
	case c.Overhead >= f && c.Overhead >= b:
		return c.Overhead + f + b, ByLatency
	case f >= b:
		return c.Overhead + f + b, ByFLOPs
	}
	return c.Overhead + f + b, ByBytes
}
