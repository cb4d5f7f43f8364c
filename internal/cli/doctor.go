package cli

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"octet/backend"
	"octet/backend/conformance"
)

type doctorCmd struct {
	Backend string `placeholder:"NAME" help:"Run the conformance suite on this backend."`
}

func (c doctorCmd) Run(ctx context.Context, t *terminal) error {
	fmt.Fprintf(t.out, "octet %s, %s, %s/%s, %d processors\n\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	for _, d := range backend.Drivers() {
		if err := d.Available(); err != nil {
			fmt.Fprintf(t.out, "✗ %s: %v\n", d.Name, err)
		} else {
			fmt.Fprintf(t.out, "✓ %s\n", d.Name)
		}
		for _, f := range d.Probe() {
			mark := "✓"
			if !f.OK {
				mark = "✗"
			}
			fmt.Fprintf(t.out, "  %s %s: %s\n", mark, f.What, f.Detail)
			if f.Fix != "" {
				fmt.Fprintf(t.out, "    %s\n", f.Fix)
			}
		}
	}
	if c.Backend == "" {
		fmt.Fprintf(t.out, "\n%s doctor --backend emu runs every op of a backend against the float64 reference.\n", t.name)
		return nil
	}
	return c.conformance(ctx, t)
}

func (c doctorCmd) conformance(ctx context.Context, t *terminal) error {
	driver, device, err := backend.Find(c.Backend)
	if err != nil {
		return badInput(err)
	}
	if _, err := driver.Spec(device); err != nil {
		return badInput(err)
	}
	if err := driver.Available(); err != nil {
		return badInput(err)
	}
	passed, declined, failed := 0, 0, 0
	for test := range conformance.Cases() {
		switch err := test.Run(ctx, driver, device); {
		case err == nil:
			passed++
		case errors.Is(err, backend.ErrUnsupported):
			declined++
		default:
			failed++
			fmt.Fprintf(t.out, "✗ %s: %v\n", test.Name, err)
		}
	}
	fmt.Fprintf(t.out, "\nconformance of %s: %d passed, %d failed, %d declined\n", c.Backend, passed, failed, declined)
	if failed > 0 {
		return fmt.Errorf("backend %s does not compute what it should", c.Backend)
	}
	return nil
}
