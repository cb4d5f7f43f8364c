package cost

import "testing"

func TestDevices(t *testing.T) { Devices() }
