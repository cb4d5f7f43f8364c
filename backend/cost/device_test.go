package cost

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every device has what each forecast needs.
func TestDevices(t *testing.T) {
	table := Devices()
	require.Len(t, table.Devices, 11)
	for name, d := range table.Devices {
		require.NotEmpty(t, d.Title, name)
		require.NotEmpty(t, d.Link, name)
		require.NotEmpty(t, d.NIC, name)
		for _, number := range []string{"memory", "bandwidth", "bf16_peak", "fp8_peak", "watts"} {
			require.Contains(t, d.Numbers, number, name)
		}
		m, err := table.Machine(Cluster{name, 8, 2}, "")
		require.NoError(t, err)
		require.Positive(t, m.Numbers["link"].Value)
		require.Positive(t, m.Numbers["nic"].Value)
		require.Positive(t, m.Numbers["hidden"].Value)
	}
	for name := range meaning {
		_, common := table.Common[name]
		used := common || name == "link" || name == "nic"
		for _, d := range table.Devices {
			_, own := d.Numbers[name]
			used = used || own
		}
		peak := strings.HasPrefix(name, "fp32_") || strings.HasPrefix(name, "int8_") || strings.HasPrefix(name, "fp4_")
		require.True(t, used || peak, "no device has %s", name)
	}
}

func TestMachine(t *testing.T) {
	table := Devices()
	m, err := table.Machine(Cluster{"h100", 8, 4}, "")
	require.NoError(t, err)
	require.Equal(t, 50.0, m.Numbers["nic"].Value)
	require.Equal(t, 450.0, m.Numbers["link"].Value)
	require.Equal(t, 0.90, m.Numbers["gemm"].Value, "a device's number goes before the common one")
	m, err = table.Machine(Cluster{"h100", 8, 4}, "ethernet-100")
	require.NoError(t, err)
	require.Equal(t, 12.5, m.Numbers["nic"].Value)
	_, err = table.Machine(Cluster{"h100", 8, 4}, "ethernet")
	require.ErrorContains(t, err, `unknown network "ethernet" (known: ethernet-100, `)
	_, err = table.Machine(Cluster{"h1000", 8, 4}, "")
	require.ErrorContains(t, err, `unknown device "h1000"; did you mean h100?`)

	own, err := ParseTable(`
[network.lab]
number.bandwidth = { value = 5, measured = "iperf" }
number.latency = { value = 30, measured = "ping" }
[device.h100]
backend = "cuda"
link = "nvlink4"
nic = "lab"
number.bandwidth = { value = 3, measured = "here" }
`)
	require.NoError(t, err)
	table, err = table.With(own)
	require.NoError(t, err)
	m, err = table.Machine(Cluster{"h100", 8, 4}, "")
	require.NoError(t, err)
	require.Equal(t, 5.0, m.Numbers["nic"].Value)
	require.Equal(t, 30.0, m.Numbers["nic_latency"].Value)
	require.Equal(t, "measured", m.Numbers["bandwidth"].Kind())
	require.NotContains(t, m.Numbers, "fp8_peak", "a row replaces a row")
	m, err = table.Machine(Cluster{"h100", 8, 1}, "")
	require.NoError(t, err)
	require.Equal(t, 12.0, m.Numbers["link_latency"].Value, "that within a node is another")
}

func TestBadTables(t *testing.T) {
	for text, want := range map[string]string{
		"[number]\nbandwidth = { value = 3 }":                                         "number.bandwidth: give its source, by one of measured, published and assumed",
		"[number]\nbandwidth = { value = 3, assumed = \"a\", measured = \"b\" }":      "give its source",
		"[number]\nbandwith = { value = 3, assumed = \"a\" }":                         "unknown number; did you mean bandwidth?",
		"[number]\nbandwidth = { value = nan, assumed = \"a\" }":                      "value NaN: expected 0 to 1e+06: memory bandwidth",
		"[number]\nbandwidth = { value = -1, assumed = \"a\" }":                       "value -1: expected 0 to 1e+06",
		"[number]\nfp8_share = { value = 71, assumed = \"a\" }":                       "value 71: expected 0 to 1: share of fp8_peak",
		"[number]\nfp8_peak = { value = 2e15, assumed = \"a\" }":                      "in 10^12",
		"[number]\nhidden = { value = 0.5, high = 2, low = 0.1, assumed = \"a\" }":    "expected one from above 0 to at most 1",
		"[number]\nbandwidth = { value = 3, low = 4, high = 5, assumed = \"a\" }":     "range 4 to 5: expected one from above 0 to at most 1e+06 that contains the value 3",
		"[number]\nbandwidth = { value = 3, high = 5, assumed = \"a\" }":              "range 0 to 5",
		"[device.x]\nbackend = \"cuda\"\nspeed = 3":                                   "unknown key device.x.speed",
		"[device.x]\ntitle = \"X\"":                                                   "device.x: give its backend",
		"[device.\"a b\"]\nbackend = \"cuda\"":                                        "expected a name of letters",
		"[network.x]\ntitle = \"X\"":                                                  "network.x: give its number.bandwidth",
		"[network.x]\nnumber.watts = { value = 3, assumed = \"a\" }":                  "a network has a bandwidth and a latency",
		"[device.x]\nbackend = \"cuda\"\nnumber.fp8_peak = { value = 3 }":             "device.x.number.fp8_peak: give its source",
		"[network.x]\nnumber.bandwidth = { value = 0, assumed = \"a\" }":              "network.x: give its number.bandwidth",
		"[device.x]\nbackend = \"cuda\"\nnumber.nic = { value = 3, assumed = \"a\" }": "device.x.number.nic: it is a number of a network",
		"[device]\nx = 3": "expected table",
	} {
		_, err := ParseTable(text)
		require.ErrorContains(t, err, want, text)
	}
	unknown, err := ParseTable("[device.x]\nbackend = \"cuda\"\nlink = \"nvlink\"")
	require.NoError(t, err)
	_, err = Devices().With(unknown)
	require.ErrorContains(t, err, `device.x: unknown network "nvlink"; did you mean nvlink`)
}

func TestParseCluster(t *testing.T) {
	for text, want := range map[string]Cluster{
		"h100": {"h100", 1, 1}, "h100:8": {"h100", 8, 1}, "h100-pcie:4x1024": {"h100-pcie", 4, 1024},
	} {
		c, err := ParseCluster(text)
		require.NoError(t, err, text)
		require.Equal(t, want, c)
		again, err := ParseCluster(c.String())
		require.NoError(t, err)
		require.Equal(t, c, again)
	}
	for _, text := range []string{"", ":8", "h100:", "h100:0", "h100:8x", "h100:8x0", "h100:-1", "h100:8x32x2", "h100:8 x 2", "h100:9999999", "h100:999999x999999"} {
		_, err := ParseCluster(text)
		require.ErrorContains(t, err, "cluster", text)
	}
	c := Cluster{"h100", 8, 32}
	for n, want := range map[int]Cluster{1: {"h100", 1, 1}, 8: {"h100", 8, 1}, 64: {"h100", 8, 8}} {
		got, err := c.Of(n)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err := c.Of(12)
	require.EqualError(t, err, "12 devices are no full nodes of 8")
}

func FuzzParseTable(f *testing.F) {
	f.Add("[number]\nrest = { value = 1, low = 0.5, high = 2, assumed = \"a\" }\n[network.n]\nnumber.bandwidth = { value = 5, measured = \"b\" }\n[device.x]\nbackend = \"cuda\"\nnumber.bandwidth = { value = 1, assumed = \"a\" }")
	f.Fuzz(func(t *testing.T, text string) {
		table, err := ParseTable(text)
		if err != nil {
			return
		}
		for name := range table.Devices {
			if m, err := table.Machine(Cluster{name, 8, 2}, ""); err == nil {
				for number, n := range m.Numbers {
					if number != "link" && number != "nic" { // networks are checked by With
						require.NotEmpty(t, n.Source(), number)
					}
				}
			}
		}
	})
}
