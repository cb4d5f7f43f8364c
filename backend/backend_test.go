package backend_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
)

func TestFind(t *testing.T) {
	driver := func(name string, rank int, err error) backend.Driver {
		return backend.Driver{Name: name, Rank: rank, Available: func(string) error { return err }}
	}
	backend.Register(driver("slow", 1000, nil))
	backend.Register(driver("fast", 1001, nil))
	backend.Register(driver("absent", 1002, errors.New("no such card")))

	d, device, err := backend.Find("absent:3")
	require.NoError(t, err)
	require.Equal(t, "absent", d.Name)
	require.Equal(t, "3", device)
	d, device, err = backend.Find("")
	require.NoError(t, err)
	require.Equal(t, "fast", d.Name, "the best that is available")
	require.Empty(t, device)
	_, _, err = backend.Find("quick:1")
	require.ErrorContains(t, err, `unknown backend "quick" (this octet knows: absent, fast, slow`)
	_, _, err = backend.Find("fasst:1")
	require.ErrorContains(t, err, `unknown backend "fasst"; did you mean fast? (this octet knows: absent, fast, slow`)
	require.Equal(t, "absent", backend.Drivers()[0].Name)
}
